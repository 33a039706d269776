"""Learns the layout of REST predict requests whose only input is a list of numbers, and the form of their responses."""

from typing import Final, NamedTuple

import numpy as np
import orjson

from tpuserve_server.core.serving.response import JSON_ROWS, Part
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.types import PredictResult, Signature, TensorSpec
from tpuserve_server.wire.json.list_template import ListTemplate
from tpuserve_server.wire.json.number_list import ListSubject, example_list
from tpuserve_server.wire.json.response import encode_predictions, prediction_template
from tpuserve_server.wire.json.tensor import decode_predict_inputs, parse_predict_body
from tpuserve_server.wire.layouts import Frame

_DOUBLE: Final = np.dtype(np.float64)


class PredictForm(NamedTuple):
    """The facts that all requests of a layout share: the input, whose name is None if the bodies do not name it."""

    name: str | None
    shape: tuple[int, ...]
    is_row: bool

    def encode(self, result: PredictResult) -> bytes:
        """Encode a response. Raises as `encode_predictions`."""
        return encode_predictions(result.outputs, is_row=self.is_row)

    def parts(self, result: PredictResult) -> tuple[Part, ...]:
        """Return the outputs with their encoding."""
        return ((result.outputs, JSON_ROWS),)

    def template(self, result: PredictResult) -> ListTemplate | None:
        """Return the template of a response, or None if it has more than lists of numbers."""
        return prediction_template(result.outputs, is_row=self.is_row)


def learn_predict_list(skeleton: bytes, subject: ListSubject) -> Frame | None:
    """Return the frame of the bodies with this skeleton of a list, or None if they need more than its numbers.

    The parser proves it: it must read the numbers of an example, in their order and shape, and nothing else.
    """
    example = example_list(skeleton)
    if example is None:
        return None
    body = b"".join((subject.before, example.text, subject.after))
    try:
        parsed = parse_predict_body(body)
        name = _column_name(body)
        decoded = decode_predict_inputs(parsed, Signature("", {name or "": TensorSpec("", _DOUBLE, None)}, {}))
    except (ServingError, ValueError):
        # orjson reads fewer documents than the parser of requests.
        return None
    (numbers,) = decoded.inputs.values()
    if numbers.shape != example.numbers.shape or not np.array_equal(numbers, example.numbers):
        return None
    form = PredictForm(name, numbers.shape, decoded.is_row)
    return Frame(subject.spec.with_signature(parsed.signature_name), (), (), form=form)


def _column_name(body: bytes) -> str | None:
    """Return the name of the only column of a valid body, or None if its input has no name."""
    columns = orjson.loads(body).get("inputs")
    return next(iter(columns)) if type(columns) is dict and len(columns) == 1 else None
