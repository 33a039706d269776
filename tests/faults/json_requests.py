"""Bad JSON bodies of the TF REST API, which the Vertex route takes too (cases 1 to 8)."""

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Final

from tests.faults.bad_request import BadRequest
from tests.faults.faulted_server import OIP_REST, TF_REST, VERTEX

GOOD: Final = b'{"instances": [[1, 2]]}'
KINDS: Final = "/v1/models/kinds:predict"
# One more than the limit.
DEPTH: Final = 101
# The first body of the largest size leaves its pages in the allocator. Later bodies use them again.
BODY_MB: Final = 128.0


def nest(levels: int, inner: str = "1") -> str:
    return "[" * levels + inner + "]" * levels


_UNKNOWN_SIGNATURE: Final = 'Serving signature name: "s" not found in signature def'
_TOO_NARROW: Final = "dimension 2 must be at least 2, because Conv2D 'conv' would have an empty input or output"
# fault, body, part of the message: 400 for each, on both routes.
_REFUSED: Final[tuple[tuple[int, str, str | bytes, str], ...]] = (
    (1, "empty body", "", ""),
    (1, "truncated JSON", '{"instances": [[1', ""),
    (1, "no UTF-8", b'{"instances": [["\xff\xfe"]]}', ""),
    (1, "bytes after the document", '{"instances": [[1, 2]]} {}', ""),
    (1, "a list, no object", "[[1, 2]]", ""),
    (1, "trailing comma", '{"instances": [[1, 2],]}', ""),
    (1, "NUL bytes", b"\0" * 1000, ""),
    (2, "101 levels of values", f'{{"instances": {nest(DEPTH)}}}', ""),
    (2, "100,000 levels of values", f'{{"instances": {nest(100_000)}}}', ""),
    (2, "100,000 levels, never closed", '{"instances": ' + "[" * 100_000, ""),
    (2, "100,000 levels of objects", '{"instances": ' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "}", ""),
    (2, "101 levels in an unknown key", f'{{"other": {nest(DEPTH)}, "instances": [[1, 2]]}}', ""),
    (2, "100,000 levels in an unknown key", f'{{"instances": [[1, 2]], "other": {nest(100_000)}}}', ""),
    (3, "nan in lower case", '{"instances": [[nan, 2]]}', ""),
    (4, "instances twice", '{"instances": [[1, 2]], "instances": [[3, 4]]}', ""),
    (4, "an input twice", '{"instances": [{"x": [1, 2], "x": [3, 4]}]}', ""),
    (4, "inputs and instances", '{"instances": [[1, 2]], "inputs": [[1, 2]]}', ""),
    (5, "neither inputs nor instances", "{}", ""),
    (5, "unknown input", '{"instances": [{"y": [1, 2]}]}', ""),
    (5, "missing input", '{"signature_name": "add", "instances": [{"a": 1}]}', ""),
    (5, "extra input", '{"instances": [{"x": [1, 2], "y": [1, 2]}]}', ""),
    (5, "unknown signature", '{"signature_name": "s", "instances": [[1, 2]]}', _UNKNOWN_SIGNATURE),
    (5, "no rows", '{"instances": []}', ""),
    (6, "strings for floats", '{"instances": [["a", "b"]]}', ""),
    (6, "null for a float", '{"instances": [[1, null]]}', ""),
    (6, "a bool for a float", '{"instances": [[1, true]]}', ""),
    (6, "a decimal for an int32", '{"signature_name": "lookup", "instances": [1.5]}', ""),
    (6, "2^31 for an int32", '{"signature_name": "lookup", "instances": [2147483648]}', ""),
    (6, "ragged rows", '{"instances": [[1, 2], [3]]}', ""),
    (6, "scalars and lists mixed", '{"instances": [[1, 2], 3]}', ""),
    (44, "rank 3", '{"instances": [[[1], [2]]]}', "expected [-1, 2]"),
    (44, "rank 0", '{"inputs": 1.0}', "expected [-1, 2]"),
    (43, "2,049 rows without elements", f'{{"signature_name": "sums", "inputs": [{"[]," * 2048}[]]}}', "no elements"),
    (6, "bad base64", '{"signature_name": "echo", "instances": [{"b64": "?"}]}', ""),
    (6, "b64 of a number", '{"signature_name": "echo", "instances": [{"b64": 1}]}', ""),
    (7, "inputs of different rows", '{"signature_name": "add", "inputs": {"a": [1, 2], "b": [1]}}', ""),
    (7, "an image smaller than a kernel", '{"signature_name": "convolve", "instances": [[[[1]], [[2]]]]}', _TOO_NARROW),
    (24, "9 rows for batches of 8", json.dumps({"instances": [[1, 2]] * 9}), "Task size 9 is larger"),
    (23, "a row with a bad value, alone", '{"signature_name": "lookup", "instances": [7]}', "is not in [0, 3)"),
)  # fmt: skip

# Requests that look bad and are valid.
_ANSWERED: Final = (
    (3, "NaN, Infinity, -Infinity", '{"instances": [[NaN, Infinity], [-Infinity, 1]]}'),
    (3, "10^400, which is infinite", '{"instances": [[1e400, -1e400]]}'),
    (3, "denormal and minus zero", '{"instances": [[1e-320, -0.0]]}'),
    (44, "the signature's rank", '{"signature_name": "sums", "instances": [[1, 2, 3]]}'),
    (43, "rows without elements", '{"signature_name": "sums", "instances": [[], []]}'),
    (5, "unknown key beside instances", '{"instances": [[1, 2]], "unknown": {"a": [1]}}'),
    (7, "an image of a kernel's size", '{"signature_name": "convolve", "instances": [[[[1], [2]], [[3], [4]]]]}'),
    (31, "NULs in strings", '{"signature_name": "echo", "instances": ["a\\u0000\\u0000"]}'),
)

# Paths of POST, the status, and a part of the message.
_PATHS: Final = (
    ("/v1/models/z:predict", "404", "Servable not found for request: Latest(z)"),
    ("/v1/models/m/versions/9:predict", "404", "Servable not found for request: Specific(m, 9)"),
    ("/v1/models/m/labels/x:predict", "400", "Unrecognized servable version label: x"),
    ("/v1/models/m/versions/99999999999999999999:predict", "400", "Failed to convert version"),
    ("/v1/models/m:unknown", "400", "Malformed request: POST /v1/models/m:unknown"),
    ("/v1/models/..%2f..%2fetc:predict", "404", "Servable not found"),
)


def json_requests() -> Iterator[BadRequest]:
    """Yield the requests for both routes."""
    for protocol in (TF_REST, VERTEX):
        for case, fault, body, says in _REFUSED:
            content = body if isinstance(body, bytes) else body.encode()
            yield BadRequest(case, fault, protocol, content, ("400",), says)
        for case, fault, body in _ANSWERED:
            if protocol == TF_REST:
                yield BadRequest(case, fault, protocol, body.encode(), ("200",))
    yield from _other_dtypes()
    yield from _encodings()
    for path, expected, says in _PATHS:
        yield BadRequest(5, path, TF_REST, GOOD, (expected,), says, path=path)


def _other_dtypes() -> Iterator[BadRequest]:
    """Yield numbers outside the range of each dtype."""
    limits = {"int8": 2**7, "int16": 2**15, "int32": 2**31, "int64": 2**63, "uint8": 2**8, "uint64": 2**64}
    for dtype, beyond in limits.items():
        body = json.dumps({"signature_name": f"echo_{dtype}", "instances": [beyond]}).encode()
        yield BadRequest(3, f"{beyond} for {dtype}", TF_REST, body, ("400",), path=KINDS)
    for dtype, value in (("bool", "2"), ("uint32", "-1"), ("float16", '"a"'), ("string", "1"), ("complex64", "[1]")):
        body = f'{{"signature_name": "echo_{dtype}", "instances": [{value}]}}'.encode()
        # JSON has no form of complex numbers.
        expected = "501" if dtype == "complex64" else "400"
        yield BadRequest(6, f"{value} for {dtype}", TF_REST, body, (expected,), path=KINDS)


def _encodings() -> Iterator[BadRequest]:
    """Yield compressed bodies that are bombs, broken or of another encoding, over every REST protocol (case 11)."""
    bomb = gzip.compress(bytes(256 << 20), 1)
    flat = zlib.compress(b"[" * (256 << 20), 1)
    whole = gzip.compress(GOOD, mtime=0)
    for protocol in (TF_REST, OIP_REST, VERTEX):
        for encoding, fault, body, expected in (
            ("gzip", "gzip bomb of 256 MiB", bomb, "413"),
            ("deflate", "deflate bomb of 256 MiB", flat, "413"),
            ("gzip", "gzip bomb within gzip", gzip.compress(bomb), "400"),
            ("gzip", "plain text as gzip", GOOD, "400"),
            ("gzip", "truncated gzip", whole[:-3], "400"),
            ("deflate", "gzip as deflate", whole, "400"),
            ("br", "brotli", b"x", "415"),
            ("gzip, gzip", "gzip twice", gzip.compress(whole), "415"),
        ):
            headers = {"content-encoding": encoding}
            yield BadRequest(11, fault, protocol, body, (expected,), headers=headers, memory_mb=BODY_MB)
