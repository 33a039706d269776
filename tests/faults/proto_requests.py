"""Bad messages of the TF gRPC API (cases 1 to 8, 31)."""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    inference_pb2,
    predict_pb2,
    regression_pb2,
)

from tests.faults.bad_request import BadRequest
from tests.faults.faulted_server import TF_GRPC, good_body

X: Final = np.ones((1, 2), np.float32)
INVALID: Final = ("INVALID_ARGUMENT",)
TOO_MANY_ROWS: Final = "Task size 9 is larger than maximum input batch size 8"
_SERVICE: Final = "/tensorflow.serving.PredictionService/"
METHODS: Final = (
    *(f"{_SERVICE}{name}" for name in ("Predict", "Classify", "Regress", "MultiInference", "GetModelMetadata")),
    "/tensorflow.serving.ModelService/GetModelStatus",
    "/tensorflow.serving.ModelService/HandleReloadConfigRequest",
)


def predict_message(
    signature: str = "", *, model: str = "m", version: int | None = None, **inputs: object
) -> predict_pb2.PredictRequest:
    message = predict_pb2.PredictRequest()
    message.model_spec.name = model
    if version is not None:
        message.model_spec.version.value = version
    message.model_spec.signature_name = signature
    for name, value in inputs.items():
        message.inputs[name].CopyFrom(
            value if isinstance(value, tensor_pb2.TensorProto) else tf.make_tensor_proto(value)
        )
    return message


def predict_body(signature: str = "", *, model: str = "m", version: int | None = None, **inputs: object) -> bytes:
    body: bytes = predict_message(signature, model=model, version=version, **inputs).SerializeToString()
    return body


def tensor(value: object, edit: Callable[[tensor_pb2.TensorProto], object]) -> tensor_pb2.TensorProto:
    """Return the tensor after a change that makes it wrong."""
    proto: tensor_pb2.TensorProto = tf.make_tensor_proto(value)
    edit(proto)
    return proto


def shaped(*shape: int, value: object = X) -> tensor_pb2.TensorProto:
    """Return a tensor whose data does not fit its shape."""

    def set_shape(proto: tensor_pb2.TensorProto) -> None:
        del proto.tensor_shape.dim[:]
        for size in shape:
            proto.tensor_shape.dim.add(size=size)

    return tensor(value, set_shape)


def repeated(dtype: int, shape: tuple[int, ...], **values: object) -> tensor_pb2.TensorProto:
    """Return a tensor of typed values, of which the last fills the rest of the shape."""
    proto = tensor_pb2.TensorProto(dtype=dtype, **values)
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    return proto


def _set_dtype(dtype: int) -> Callable[[tensor_pb2.TensorProto], object]:
    return lambda proto: setattr(proto, "dtype", dtype)


def _bad_tensors() -> Iterator[tuple[int, str, bytes, tuple[str, ...], str]]:
    """Yield case, fault, message, codes and a part of the error."""
    missing = (
        "input size does not match signature: 0!=1 len({}) != len({x}). Sent extra: {}. Missing but required: {x}."
    )
    yield 5, "missing input", predict_body(), INVALID, missing
    yield 5, "unknown input", predict_body(y=X), INVALID, "Sent extra: {y}. Missing but required: {x}."
    yield 5, "extra input", predict_body(x=X, y=X), INVALID, "Sent extra: {y}. Missing but required: {}."
    yield (
        5,
        "unknown signature",
        predict_body("s", x=X),
        ("FAILED_PRECONDITION",),
        'Serving signature key "s" not found.',
    )
    yield 5, "unknown model", predict_body(model="z", x=X), ("NOT_FOUND",), "Servable not found for request: Latest(z)"
    specific = "Servable not found for request: Specific(m, 9)"
    yield 5, "unknown version", predict_body(x=X, version=9), ("NOT_FOUND",), specific
    yield 5, "no model", predict_body(model="", x=X), INVALID, "ModelSpec has no name specified."
    yield 6, "int32 for float", predict_body(x=X.astype(np.int32)), INVALID, "has dtype int32, expected float32"
    yield 44, "rank 3", predict_body(x=np.ones((1, 2, 3), "f")), INVALID, "expected [-1, 2]"
    yield 44, "rank 1", predict_body(x=np.ones(2, "f")), INVALID, "expected [-1, 2]"
    yield 44, "rank 0", predict_body(x=np.float32(1)), INVALID, "expected [-1, 2]"
    yield 44, "another fixed dimension", predict_body(x=np.ones((1, 3), "f")), INVALID, "expected [-1, 2]"
    yield 44, "the signature's rank", predict_body("sums", x=np.ones((1, 3), "f")), ("OK",), ""
    for large in ((2**45, 0), (0, 2**45), (2**31, 0), (2049, 0)):
        huge = shaped(*large, value=np.zeros((0, 0), "f"))
        yield 43, f"no elements, shape {list(large)}", predict_body("sums", x=huge), INVALID, "no elements"
    for small in ((0, 0), (0, 2048), (8, 0)):
        yield 43, f"no elements, shape {list(small)}", predict_body("sums", x=np.zeros(small, "f")), ("OK",), ""
    for dtype in (0, 20, 21, 22, 100, 101, 200, 99999):
        yield 6, f"dtype {dtype}", predict_body(x=tensor(X, _set_dtype(dtype))), INVALID, "x"
    yield (
        6,
        "unknown rank",
        predict_body(x=tensor(X, lambda p: setattr(p.tensor_shape, "unknown_rank", True))),
        INVALID,
        "",
    )
    yield (
        7,
        "different rows",
        predict_body("add", a=np.ones(2, "f"), b=np.ones(3, "f")),
        INVALID,
        "equal 0th-dimension size",
    )
    for shape in ((-5, 2), (2**40, 2**40), (2**62, 4), (2**63 - 1, 2), (-(2**63), 2), (2**32, 2**32, 2)):
        yield 7, f"shape {list(shape)}", predict_body(x=shaped(*shape)), INVALID, ""
    yield 7, "255 dimensions", predict_body(x=shaped(*[1] * 255)), INVALID, ""
    yield 7, "no rows", predict_body(x=np.ones((0, 2), "f")), ("OK",), ""
    yield 8, "3 of 8 bytes", predict_body(x=tensor(X, lambda p: setattr(p, "tensor_content", bytes(3)))), INVALID, ""
    yield 8, "16 of 8 bytes", predict_body(x=tensor(X, lambda p: setattr(p, "tensor_content", bytes(16)))), INVALID, ""
    yield 8, "more values than elements", predict_body(x=repeated(1, (1, 2), float_val=[1, 2, 3])), INVALID, ""
    yield 8, "no values for a string", predict_body("echo", text=repeated(7, (2,))), ("OK", *INVALID), ""
    yield 24, "9 rows for batches of 8", predict_body(x=np.ones((9, 2), "f")), INVALID, TOO_MANY_ROWS
    yield (
        23,
        "a row with a bad value, alone",
        predict_body("lookup", index=np.array([7], np.int32)),
        INVALID,
        "is not in [0, 3)",
    )
    yield 31, "one float 2 billion times", predict_body(x=repeated(1, (2**30, 2), float_val=[1])), INVALID, ""
    yield (
        31,
        "one bool 2^40 times",
        predict_body("echo_bool", model="kinds", x=repeated(10, (2**40,), bool_val=[True])),
        INVALID,
        "",
    )
    yield (
        31,
        "one complex 2^31 times",
        predict_body("echo_complex128", model="kinds", x=repeated(18, (2**31,), dcomplex_val=[1, 2])),
        INVALID,
        "",
    )


def _malformed() -> Iterator[BadRequest]:
    # Groups (wire type 3) of the unknown field 15, one within another.
    groups = b"\x7b" * 10_000 + b"\x7c" * 10_000
    good = good_body(TF_GRPC)
    for path in METHODS:
        name = path.rpartition("/")[2]
        for fault, body in (("no message", b"\xff\xff\xff"), ("10,000 nested groups", groups)):
            yield BadRequest(1 if body[0] == 255 else 2, f"{name}: {fault}", TF_GRPC, body, INVALID, path=path)
    yield BadRequest(1, "truncated message", TF_GRPC, good[:-3], INVALID)
    yield BadRequest(1, "a length of 2^63 - 1", TF_GRPC, b"\x0a" + b"\xff" * 8 + b"\x7f", INVALID)
    yield BadRequest(1, "empty message", TF_GRPC, b"", INVALID, "Missing ModelSpec")
    yield BadRequest(1, "another message", TF_GRPC, good, (*INVALID, "OK"), path=METHODS[1])


def _output_filters() -> Iterator[BadRequest]:
    for fault, names, says in (("output twice", ["y", "y"], "duplicate"), ("unknown output", ["z"], "not found")):
        message = predict_message(x=X)
        message.output_filter.extend(names)
        yield BadRequest(4, fault, TF_GRPC, message.SerializeToString(), INVALID, says)


def _examples() -> Iterator[BadRequest]:
    """Yield bad requests of Classify, Regress, MultiInference and GetModelMetadata."""
    for name, kind in (
        ("Classify", classification_pb2.ClassificationRequest),
        ("Regress", regression_pb2.RegressionRequest),
    ):
        request = kind()
        request.model_spec.name = "m"
        request.input.example_list.examples.add().features.feature["x"].bytes_list.value.append(b"\0" * 100)
        yield BadRequest(
            6,
            f"{name} of a signature without Examples",
            TF_GRPC,
            request.SerializeToString(),
            INVALID,
            path=_SERVICE + name,
        )
        request.input.Clear()
        yield BadRequest(
            5, f"{name} without input", TF_GRPC, request.SerializeToString(), INVALID, path=_SERVICE + name
        )
    multi = inference_pb2.MultiInferenceRequest()
    yield BadRequest(
        5, "MultiInference without tasks", TF_GRPC, multi.SerializeToString(), INVALID, path=f"{_SERVICE}MultiInference"
    )
    metadata = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["a", "b"])
    metadata.model_spec.name = "m"
    yield BadRequest(
        5, "unknown metadata field", TF_GRPC, metadata.SerializeToString(), INVALID, path=f"{_SERVICE}GetModelMetadata"
    )


def proto_requests() -> Iterator[BadRequest]:
    """Yield the requests of TF gRPC."""
    yield from _malformed()
    yield from _output_filters()
    yield from _examples()
    for case, fault, body, expected, says in _bad_tensors():
        yield BadRequest(case, fault, TF_GRPC, body, expected, says)
