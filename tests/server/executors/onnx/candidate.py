"""Candidate and servable of ONNX models: numpy runs a subset of ONNX's operators."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from tests.server.executors.onnx import MODEL_FILE, OnnxOptions
from tpuserve_server.core.system.memory import HostMemory, total_size
from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument
from tpuserve_server.core.terms.servable import InFlight, Servable, VersionFiles
from tpuserve_server.core.terms.tracer import Tracer
from tpuserve_server.core.terms.types import Array, ServableId, Signature, Tensors, TensorSpec
from tpuserve_server.executors.candidate import CompletedRun, Refusal

# Messages of onnx.proto, with the fields that this executor reads.
_FIELDS: Final = {
    "Model": ("1 ir_version int64", "7 graph Graph"),
    "Graph": ("1 node Node*", "5 initializer Tensor*", "11 input Value*", "12 output Value*"),
    "Node": ("1 input string*", "2 output string*", "4 op_type string", "5 attribute Attribute*"),
    "Attribute": ("1 name string", "2 f float", "3 i int64", "20 type int64"),
    "Tensor": ("1 dims int64*", "2 data_type int64", "8 name string", "9 raw_data bytes"),
    "Value": ("1 name string", "2 type Type"),
    "Type": ("1 tensor_type TensorType",),
    "TensorType": ("1 elem_type int64", "2 shape Shape"),
    "Shape": ("1 dim Dimension*",),
    "Dimension": ("1 dim_value int64", "2 dim_param string"),
}
# By TensorProto.DataType.
DTYPES: Final[Mapping[int, np.dtype[Any]]] = {
    1: np.dtype(np.float32),
    6: np.dtype(np.int32),
    7: np.dtype(np.int64),
}
_INTEGER: Final = 2  # AttributeProto.AttributeType.INT


def _model() -> Any:  # noqa: ANN401 - a class of messages that is made here
    file = descriptor_pb2.FileDescriptorProto(name="onnx_subset.proto", package="onnx_subset", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto.Type
    for message, fields in _FIELDS.items():
        described = file.message_type.add(name=message)
        for number, name, kind in map(str.split, fields):
            field = described.field.add(name=name, number=int(number), label=3 if kind.endswith("*") else 1)
            kind = kind.removesuffix("*")
            if kind in _FIELDS:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".onnx_subset.{kind}"
            else:
                field.type = kinds.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("onnx_subset.Model"))


MODEL: Final = _model()


def _gemm(a: Array, b: Array, c: Array | int = 0, *, alpha: float = 1, transB: int = 0) -> Array:
    product: Array = a @ (b.T if transB else b)
    return alpha * product + c


def _softmax(x: Array, *, axis: int = -1) -> Array:
    powers = np.exp(x - x.max(axis, keepdims=True))
    result: Array = powers / powers.sum(axis, keepdims=True)
    return result


_OPERATORS: Final[Mapping[str, Callable[..., Array]]] = {
    "Add": np.add,
    "MatMul": np.matmul,
    "Gemm": _gemm,
    "Relu": lambda x: np.maximum(x, 0),
    "Softmax": _softmax,
}


class OnnxModels:
    """Candidate for versions with `model.onnx`."""

    name = "numpy on the CPU"
    kind = "cpu"

    def __init__(self, options: OnnxOptions, memory: HostMemory) -> None:
        """Take the options. Loads reserve the size of their file in `memory`."""
        self._options = options
        self._memory = memory

    def load(self, servable_id: ServableId, version: VersionFiles) -> Servable | Refusal:
        """Implement Candidate.load."""
        file = version.path / MODEL_FILE
        if not file.is_file():
            return Refusal(FailedPrecondition(f"the version has no {MODEL_FILE}"))
        with self._memory.reserve(total_size(file)):
            try:
                graph = MODEL.FromString(file.read_bytes()).graph
            except DecodeError as error:
                raise InvalidArgument(f"{MODEL_FILE} is damaged") from error
        unknown = sorted({node.op_type for node in graph.node} - _OPERATORS.keys())
        if unknown or not 0 < len(graph.node) <= self._options.most_nodes:
            raise FailedPrecondition(f"{MODEL_FILE} has unknown operators {unknown}, or none, or too many nodes")
        return OnnxServable(graph)

    def tracer(self) -> Tracer | None:
        """Return None: numpy has no profiler."""
        return None


class OnnxServable:
    """One graph. Keeps no state between runs, so any thread may run it."""

    device = f"CPU (numpy {np.__version__})"
    max_in_flight = 1
    unrepeatable = ""
    never_blocks = True

    def __init__(self, graph: Any) -> None:  # noqa: ANN401 - a message without types
        """Take a checked GraphProto."""
        self._nodes = graph.node
        self._weights = {each.name: _array(each) for each in graph.initializer}
        inputs = _specs(each for each in graph.input if each.name not in self._weights)
        self.signatures = {"serving_default": Signature("serving_default", inputs, _specs(graph.output))}

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        """Implement Servable.dispatch."""
        values = {**self._weights, **inputs}
        for node in self._nodes:
            attributes = {each.name: each.i if each.type == _INTEGER else each.f for each in node.attribute}
            values[node.output[0]] = _OPERATORS[node.op_type](*(values[name] for name in node.input), **attributes)
        return CompletedRun({name: values[name] for name in output_names})

    def close(self) -> None:
        """Implement Servable.close."""
        self._weights.clear()


def _array(tensor: Any) -> Array:  # noqa: ANN401 - a message without types
    array: Array = np.frombuffer(tensor.raw_data, DTYPES[tensor.data_type])
    return array.reshape(tensor.dims)


def _specs(values: Any) -> dict[str, TensorSpec]:  # noqa: ANN401 - messages without types
    tensors = {value.name: value.type.tensor_type for value in values}
    return {
        name: TensorSpec(name, DTYPES[of.elem_type], tuple(dim.dim_value or None for dim in of.shape.dim), f"{name}:0")
        for name, of in tensors.items()
    }
