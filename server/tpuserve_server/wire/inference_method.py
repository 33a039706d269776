"""Classify and Regress: their requirements on a signature, and their encoding of the outputs.

Source of the rules and messages: tensorflow_serving/servables/tensorflow/classifier.cc and regressor.cc.
"""

from typing import Final, Protocol

import numpy as np

from tpuserve_formats.dtypes import BY_DTYPE
from tpuserve_formats.messages.official import DATA_TYPE
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Array, Signature, Tensors
from tpuserve_server.wire.inference_result import (
    encode_classifications,
    encode_regressions,
    json_classifications,
    json_regressions,
)
from tpuserve_server.wire.metadata import signature_def

# The only input, of serialized tf.Examples (tensorflow/saved_model/signature_constants).
EXAMPLES_INPUT: Final = "inputs"
_CLASSES: Final = "classes"
_SCORES: Final = "scores"
_REGRESSIONS: Final = "outputs"


class InferenceMethod(Protocol):
    """An inference method over tf.Examples."""

    @property
    def name(self) -> str:
        """The name of the RPC, also used in metrics."""
        ...

    @property
    def request_name(self) -> str:
        """The name of the request message."""
        ...

    @property
    def method_name(self) -> str:
        """The method_name in signatures and in MultiInference tasks."""
        ...

    def output_names(self, signature: Signature, *, check_method_name: bool) -> tuple[str, ...]:
        """Return the one or two outputs to fetch.

        Raises:
            InvalidArgument: the signature does not fit this method: it has unsuitable inputs or outputs or, with
                `check_method_name`, a different method_name.
        """
        ...

    def encode(self, outputs: Tensors, examples: int) -> bytes:
        """Return a serialized ClassificationResult or RegressionResult.

        Raises:
            InvalidArgument: the outputs do not have this method's dtypes and shapes, or not `examples` rows.
        """
        ...

    def encode_json(self, outputs: Tensors, examples: int) -> bytes:
        """Return the REST body. Raises the errors of `encode`."""
        ...


class _Classify:
    """`classes` (string [n, c]), `scores` (float32 [n, c]), or both."""

    name: Final = "Classify"
    request_name: Final = "ClassificationRequest"
    method_name: Final = "tensorflow/serving/classify"

    def output_names(self, signature: Signature, *, check_method_name: bool) -> tuple[str, ...]:
        if check_method_name:
            _check_method_name("classification", self.method_name, signature)
        _check_one_input(signature)
        if len(signature.outputs) not in (1, 2):
            raise InvalidArgument(f"Expected one or two output Tensors, found {len(signature.outputs)}")
        _check_examples_input("classification", signature)
        names = tuple(name for name in (_CLASSES, _SCORES) if name in signature.outputs)
        if not names:
            raise InvalidArgument(
                'Expected classification signature outputs to contain at least one of "classes" or "scores".'
                f" Signature was: {signature_def(signature)}"
            )
        return names

    def encode(self, outputs: Tensors, examples: int) -> bytes:
        return encode_classifications(*self._checked(outputs, examples))

    def encode_json(self, outputs: Tensors, examples: int) -> bytes:
        return json_classifications(*self._checked(outputs, examples))

    def _checked(self, outputs: Tensors, examples: int) -> tuple[Array | None, Array | None]:
        classes, scores = outputs.get(_CLASSES), outputs.get(_SCORES)
        if classes is not None:
            _check_matrix(_CLASSES, classes, np.dtype(np.object_), examples)
        if scores is not None:
            _check_matrix(_SCORES, scores, np.dtype(np.float32), examples)
        if classes is not None and scores is not None and classes.shape[1] != scores.shape[1]:
            raise InvalidArgument(
                f"Tensors class and score should match in dim_size(1). Got {classes.shape[1]} vs. {scores.shape[1]}"
            )
        return classes, scores


class _Regress:
    """`outputs` (float32 [n] or [n, 1])."""

    name: Final = "Regress"
    request_name: Final = "RegressionRequest"
    method_name: Final = "tensorflow/serving/regress"

    def output_names(self, signature: Signature, *, check_method_name: bool) -> tuple[str, ...]:
        if check_method_name:
            _check_method_name("regression", self.method_name, signature)
        _check_one_input(signature)
        if len(signature.outputs) != 1:
            raise InvalidArgument("Expected one output Tensor.")
        _check_examples_input("regression", signature)
        if _REGRESSIONS not in signature.outputs:
            raise InvalidArgument(f"No regression outputs found in SignatureDef: {signature_def(signature)}")
        return (_REGRESSIONS,)

    def encode(self, outputs: Tensors, examples: int) -> bytes:
        return encode_regressions(self._checked(outputs, examples))

    def encode_json(self, outputs: Tensors, examples: int) -> bytes:
        return json_regressions(self._checked(outputs, examples))

    def _checked(self, outputs: Tensors, examples: int) -> Array:
        values = outputs[_REGRESSIONS]
        if not (values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1)):
            raise InvalidArgument(
                "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got "
                f"{_shape_text(values)}"
            )
        if len(values) != examples:
            raise InvalidArgument(f"Input batch size did not match output batch size: {examples} vs. {len(values)}")
        if values.dtype != np.float32:
            raise InvalidArgument(f"Expected output Tensor of DT_FLOAT.  Got: {_type_text(values)}")
        return values.reshape(-1)


CLASSIFY: Final[InferenceMethod] = _Classify()
REGRESS: Final[InferenceMethod] = _Regress()
_BY_METHOD_NAME = {method.method_name: method for method in (CLASSIFY, REGRESS)}


def method_named(method_name: str) -> InferenceMethod | None:
    """Return the method with the given method_name of signatures and tasks, or None if it is unknown."""
    return _BY_METHOD_NAME.get(method_name)


def _check_method_name(kind: str, expected: str, signature: Signature) -> None:
    if signature.method_name != expected:
        raise InvalidArgument(f"Expected {kind} signature method_name to be {expected}. Was: {signature.method_name}")


def _check_one_input(signature: Signature) -> None:
    if len(signature.inputs) != 1:
        raise InvalidArgument("Expected one input Tensor.")


def _check_examples_input(kind: str, signature: Signature) -> None:
    if EXAMPLES_INPUT not in signature.inputs:
        raise InvalidArgument(f"No {kind} inputs found in SignatureDef: {signature_def(signature)}")


def _check_matrix(name: str, array: Array, dtype: "np.dtype[np.generic]", examples: int) -> None:
    if array.ndim != 2:
        raise InvalidArgument(f"Expected Tensor shape: [batch_size num_classes] but got {_shape_text(array)}")
    if array.dtype != dtype:
        expected = "DT_STRING" if dtype.hasobject else "DT_FLOAT"
        raise InvalidArgument(f"Expected {name} Tensor of {expected}. Got: {_type_text(array)}")
    if len(array) != examples:
        raise InvalidArgument(f"Expected {name} output batch size of {examples}. Got: {len(array)}")


def _shape_text(array: Array) -> str:
    return f"[{','.join(map(str, array.shape))}]"


def _type_text(array: Array) -> str:
    wire_type = BY_DTYPE.get(array.dtype)
    return DATA_TYPE.values_by_number[wire_type.number].name if wire_type else str(array.dtype)
