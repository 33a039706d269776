"""JSON bodies of any size and of every structure that decoders treat differently, over both REST protocols."""

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tests.zoo.protocols import Request

KILOBYTE: Final = 1 << 10
# Sizes of the documents in kibibytes.
SIZES: Final = (1, 64, 1024, 8 * 1024, 64 * 1024)


@dataclass(frozen=True, slots=True)
class Structure:
    """A document that repeats `piece` between `head` and `tail`, for a model of the zoo.

    `is_valid`: the model answers small documents of it. `{}` in the head is the number of pieces.
    """

    name: str
    model: str
    head: str
    piece: str
    tail: str
    is_valid: bool = True
    is_oip: bool = False

    def request(self, size: int, *, is_gzip: bool) -> Request:
        """Return a request whose document has about this size in kibibytes, before its compression."""
        count = max(1, size * KILOBYTE // len(self.piece.encode()))
        pieces = (self.piece * count).removesuffix(",")
        body = (self.head.replace("{}", str(count)) + pieces + self.tail).encode()
        path = f"/v2/models/{self.model}/infer" if self.is_oip else f"/v1/models/{self.model}:predict"
        headers = {"content-encoding": "gzip"} if is_gzip else {}
        return Request(path, gzip.compress(body, 1) if is_gzip else body, headers)


ROWS: Final = '{"instances": [%s]}'
COLUMNS: Final = '{"inputs": [%s]}'


def _tf(name: str, model: str, piece: str, around: str = COLUMNS, *, is_valid: bool = True) -> Structure:
    head, tail = around.split("%s")
    return Structure(name, model, head, piece, tail, is_valid)


def _oip(name: str, model: str, shape: str, piece: str, *, datatype: str = "FP32", is_valid: bool = True) -> Structure:
    head = f'{{"inputs": [{{"name": "x", "datatype": "{datatype}", "shape": {shape}, "data": ['
    return Structure(name, model, head, piece, "]}]}", is_valid, is_oip=True)


# The models sum or measure, so that their answers are small.
STRUCTURES: Final = (
    _tf("rows of a number", "reduce_sum", "[1],", ROWS),
    _tf("one row of numbers", "reduce_sum_first", "1,", '{"inputs": [[%s]]}'),
    _tf("one column of numbers", "reduce_sum_first", "[0.123456789],"),
    _tf("numbers instead of rows", "reduce_sum_first", "1,", ROWS, is_valid=False),
    _tf("denormal numbers", "reduce_sum_first", "[1.2345678901234567e-310],"),
    _tf("long numbers", "reduce_sum_first", f"[0.{'1' * 400}],"),
    _tf("empty rows", "reduce_sum", "[],", ROWS),
    _tf("rows of an empty list", "reduce_sum_all", "[[]],"),
    _tf("rows of empty lists", "reduce_sum_all", "[[],[],[],[]],"),
    _tf("deep empty lists", "reduce_sum_all", "[[[[[[[]]]]]]],", is_valid=False),
    _tf("nested rows", "reduce_sum_all", "[[0]],"),
    _tf("nested too deeply", "reduce_sum_all", "[[[[[[[[0]]]]]]]],", is_valid=False),
    _tf("one deep list", "reduce_sum_all", "[", is_valid=False),
    _tf("ragged rows", "reduce_sum_first", "[1],[],", is_valid=False),
    _tf("rows with two keys", "add", '{"x":[1],"y":[2]},', ROWS),
    _tf("rows with empty columns", "add", '{"x":[],"y":[]},', ROWS),
    _tf("rows with an unknown key", "add", '{"x":[1],"z":[2]},', ROWS, is_valid=False),
    _tf("empty objects", "reduce_sum_first", "{},", ROWS, is_valid=False),
    _tf("texts", "text_lengths", '["abc"],'),
    _tf("empty texts", "text_lengths", '[""],'),
    _tf("escaped texts", "text_lengths", '["\\u00e9\\n"],'),
    _tf("base64", "text_lengths", '[{"b64":"YWJj"}],'),
    _tf("empty base64", "text_lengths", '[{"b64":""}],'),
    _tf("one text", "text_lengths", "abcdefgh", '{"inputs": [["%s"]]}'),
    _tf("one base64", "text_lengths", "YWJj", '{"inputs": [[{"b64": "%s"}]]}'),
    _tf("unknown lists", "reduce_sum_first", "[],", '{"inputs": [[1]], "unknown": [%s]}'),
    _tf("unknown objects", "reduce_sum_first", '{"a":{}},', '{"inputs": [[1]], "unknown": [%s]}'),
    _tf("spaces", "reduce_sum_first", " ", '{"inputs":%s[[1]]}'),
    _oip("numbers", "reduce_sum_first", "[{}, 1]", "1,"),
    _oip("nested numbers", "reduce_sum_first", "[{}, 1]", "[1],"),
    _oip("denormals", "reduce_sum_first", "[{}, 1]", "1.2345678901234567e-310,"),
    _oip("empty lists", "reduce_sum_first", "[{}, 0]", "[],"),
    _oip("fewer numbers than the shape", "reduce_sum_first", "[99999999, 1]", "1,", is_valid=False),
    _oip("strings", "text_lengths", "[{}, 1]", '"abc",', datatype="BYTES"),
    _oip("empty strings", "text_lengths", "[{}, 1]", '"",', datatype="BYTES"),
    Structure(
        "inputs", "reduce_sum_first", '{"inputs": [', '{"name":"x","datatype":"FP32","shape":[0,1],"data":[]},', "]}",
        is_valid=False, is_oip=True,
    ),
    Structure(
        "requested outputs", "reduce_sum_first",
        '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}], "outputs": [',
        '{"name":"y"},', "]}", is_valid=False, is_oip=True,
    ),
    Structure(
        "parameters", "reduce_sum_first",
        '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}], "parameters": {"a": [',
        "[],", "]}}", is_valid=False, is_oip=True,
    ),
)  # fmt: skip
MODELS: Final = tuple(sorted({one.model for one in STRUCTURES}))


def bodies(sizes: Sequence[int]) -> Iterator[tuple[Structure, int, bool]]:
    """Yield each structure, size in kibibytes, and whether gzip compresses it."""
    for structure in STRUCTURES:
        for size in sizes:
            yield structure, size, False
            yield structure, size, True
