"""Tests for large bodies that are expensive to parse, while other requests run (cases 31, 32 and 45)."""

import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import psutil
import pytest
from tensorflow_serving.apis import predict_pb2

from tests.faults.faulted_server import OIP_GRPC, OIP_REST, TF_GRPC, TF_REST, VERTEX, Faults, good_body
from tests.faults.proto_requests import predict_body, repeated

MEBIBYTE = 1 << 20
SIZE = 60 * MEBIBYTE
# One body of the largest size may stay in the allocator, with what it was decoded to.
LARGE_MB = 200.0


def filled(piece: str, around: str = '{"instances": [%s0]}', size: int = SIZE) -> bytes:
    """Return a document of this size that repeats the piece."""
    return (around % (piece * (size // len(piece)))).encode()


def unknown_keys() -> bytes:
    head = '{"instances": [[1, 2]], "unknown": {'
    return (head + ", ".join(f'"k{index}": 0' for index in range(800_000)) + "}}").encode()


def empty_dims() -> bytes:
    """Return a message whose shape has 20 million dimensions without a size, 2 bytes each."""
    dims = b"\x12\x00" * (20 * MEBIBYTE)
    return _with_tensor(b"\x08\x01" + b"\x12" + _varint(len(dims)) + dims)


def empty_inputs() -> bytes:
    """Return a message with 20 million inputs without a name."""
    return predict_body() + b"\x12\x00" * (20 * MEBIBYTE)


def unknown_fields() -> bytes:
    return good_body(TF_GRPC) + b"\xf8\x01\x00" * (13 * MEBIBYTE)


def oip_dims() -> bytes:
    """Return a message whose only input has 40 million dimensions."""
    shape = b"\x1a" + _varint(40 * MEBIBYTE) + bytes(40 * MEBIBYTE)
    tensor = b"\x0a\x01x\x12\x04FP32" + shape
    return b"\x0a\x01m" + b"\x2a" + _varint(len(tensor)) + tensor


def oip_inputs() -> bytes:
    return b"\x0a\x01m" + b"\x2a\x00" * (20 * MEBIBYTE)


def _with_tensor(tensor: bytes) -> bytes:
    """Return a PredictRequest for `m` with the input x."""
    entry = b"\x0a\x01x\x12" + _varint(len(tensor)) + tensor
    return predict_body() + b"\x12" + _varint(len(entry)) + entry


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


OIP_DATA = '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [%s0]}]}'
REFUSED = ("INVALID_ARGUMENT", "400")
# fault, protocol: the body, made when its test runs.
LARGE: dict[tuple[str, str], Callable[[], bytes]] = {
    ("40 MiB of empty dimensions", TF_GRPC): empty_dims,
    ("40 MiB of empty inputs", TF_GRPC): empty_inputs,
    ("39 MiB of unknown fields", TF_GRPC): unknown_fields,
    ("40 MiB of dimensions", OIP_GRPC): oip_dims,
    ("40 MiB of empty inputs", OIP_GRPC): oip_inputs,
    ("10 MiB of unknown keys", TF_REST): unknown_keys,
    ("60 MiB of [],", TF_REST): lambda: filled("[],"),
    ("60 MiB of 0,", TF_REST): lambda: filled("0,"),
    ('60 MiB of "",', TF_REST): lambda: filled('"",', '{"signature_name": "echo", "instances": [%s""]}'),
    ("20 MiB of [],", OIP_REST): lambda: filled("[],", OIP_DATA, 20 * MEBIBYTE),
    ("60 MiB of {},", VERTEX): lambda: filled("{},"),
    ("60 MiB of [", VERTEX): lambda: filled("["),
}
ANSWERED = ("39 MiB of unknown fields", "10 MiB of unknown keys")


@pytest.mark.parametrize(("fault", "protocol"), LARGE)
def test_large_body_is_refused_beside_other_requests(faults: Faults, fault: str, protocol: str) -> None:
    body = LARGE[fault, protocol]()
    expected = (*REFUSED, "OK", "200") if fault in ANSWERED else REFUSED
    with faults.fault(32, fault, protocol, *expected, memory_mb=LARGE_MB, beside=True) as attempt:
        attempt.got = faults.server.send(protocol, body).got


def test_one_value_for_eight_million_takes_no_memory(faults: Faults) -> None:
    body = predict_body("echo", text=repeated(7, (8_000_000,), string_val=[b"a" * 1000]))
    with faults.fault(
        31, "one string of 1,000 bytes repeated 8 million times", TF_GRPC, "INVALID_ARGUMENT", beside=True
    ) as attempt:
        attempt.got = faults.server.send(TF_GRPC, body).got


def test_nuls_of_repeated_strings_are_kept(faults: Faults) -> None:
    body = predict_body("echo", text=repeated(7, (3,), string_val=[b"a\0\0"]))
    with faults.fault(31, "a NUL string repeated 3 times", TF_GRPC, "OK") as attempt:
        answer = faults.server.send(TF_GRPC, body)
        attempt.got = answer.got
        found = predict_pb2.PredictResponse.FromString(answer.content).outputs["same"].string_val
        assert list(found) == [b"a\0\0"] * 3


FREE: Final = '{"signature_name": "free", "instances": [%s%s]}'
FREE_OIP: Final = (
    OIP_DATA.replace("[1, 2]", "[0]")
    .replace("%s0", "%s%s")
    .replace('{"inputs"', '{"parameters": {"signature_name": "free"}, "inputs"')
)
GZIP: Final = {"content-encoding": "gzip"}
EIGHT: Final = 8 * MEBIBYTE
# Memory for a body of 8 MiB, its arrays and an answer of 8 MiB while they exist.
PEAK_MB = 160.0


def listed(piece: str, form: str = FREE, size: int = EIGHT) -> bytes:
    """Return a document of this size with a list of the piece."""
    return (form % ((piece + ",") * (size // (len(piece) + 1)), piece)).encode()


# fault, protocol: the body, and the number of predictions in its answer. None: its shape is refused, once it is known.
ODD: dict[tuple[str, str], tuple[Callable[[], bytes], Mapping[str, str], int | None]] = {
    ("8 MiB of [],", TF_REST): (lambda: listed("[]"), {}, None),
    ("8 MiB of [], in 8 KB of gzip", TF_REST): (lambda: gzip.compress(listed("[]")), GZIP, None),
    # The limit of a response is 32 MiB.
    ("4 MiB of [0],", TF_REST): (lambda: listed("[0]", size=EIGHT // 2), {}, EIGHT // 8 + 1),
    ("8 MiB of [[[…0…]]]", TF_REST): (lambda: listed("[" * 50 + "0" + "]" * 50), {}, None),
    ("8 MiB of 8 lists in each other", TF_REST): (lambda: listed("[" * 7 + "0" + "]" * 7), {}, EIGHT // 16 + 1),
    ("8 MiB of rows with empty columns", TF_REST): (lambda: listed('{"x":[]}'), {}, None),
    ("8 MiB of rows of one number", TF_REST): (lambda: listed('{"x":[0]}'), {}, EIGHT // 10 + 1),
    ("8 MiB of numbers with 24 digits", TF_REST): (
        lambda: listed("1.23456789012345678901234e-300"), {}, EIGHT // 31 + 1,
    ),
    ("8 MiB of [],", VERTEX): (lambda: listed("[]"), {}, None),
    ("8 MiB of [],", OIP_REST): (lambda: listed("[]", FREE_OIP), {}, 0),
}  # fmt: skip


@pytest.mark.parametrize(("fault", "protocol"), ODD)
def test_odd_body_is_answered_beside_other_requests(faults: Faults, fault: str, protocol: str) -> None:
    make, headers, count = ODD[fault, protocol]
    body = make()
    peak = PeakMemory(faults)
    expected = "400" if count is None else "200"
    with faults.fault(45, fault, protocol, expected, memory_mb=LARGE_MB, beside=True) as attempt, peak:
        answer = faults.server.send(protocol, body, {**headers, "accept-encoding": "identity"})
        attempt.got = answer.got
        if count is None:
            assert b"input 'x' has shape" in answer.content
            return
        document = json.loads(answer.content)
        found = document["outputs"][0]["data"] if protocol == OIP_REST else document["predictions"]
        assert len(found) == count
    assert peak.grown_mb < PEAK_MB


class PeakMemory:
    """The growth of the server's resident memory at its highest, in MB, while the context lasts."""

    def __init__(self, faults: Faults) -> None:
        parent = psutil.Process(faults.server.running.process.pid)
        self._ids = [parent.pid, *(child.pid for child in parent.children(recursive=True))]
        self.grown_mb = 0.0

    def __enter__(self) -> "PeakMemory":
        for number in self._ids:
            # Resets the highest value.
            Path(f"/proc/{number}/clear_refs").write_text("5")
        self._before_mb = self._highest_mb()
        return self

    def __exit__(self, *exception: object) -> None:
        self.grown_mb = self._highest_mb() - self._before_mb

    def _highest_mb(self) -> float:
        lines = [line for number in self._ids for line in Path(f"/proc/{number}/status").read_text().splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1e3
