"""Recorded requests, for any model and version."""

from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from tpuserve_client import dtypes, tensor
from tpuserve_client.dtypes import describe
from tpuserve_client.exchange import Exchange, PredictCall
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec, Signature, TensorSpec
from tpuserve_formats.messages import official
from tpuserve_loadtests.requests.inputs import BadInput, has_rows
from tpuserve_loadtests.requests.protocols import Protocol
from tpuserve_loadtests.requests.recording import Recording
from tpuserve_loadtests.requests.wires import predict_exchange


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A recorded request with `inputs` as in Logged. `golden` is the recorded response, if any."""

    inputs: bytes
    signature_name: str
    rows: int
    golden: bytes = b""

    def exchange(self, spec: ModelSpec, protocol: Protocol) -> Exchange:
        """Return the request for a protocol.

        gRPC keeps the recorded bytes except the model and version. The other protocols use the client's encoding.
        """
        if protocol == "grpc":
            head = GrpcWire().predict(PredictCall(spec, {}, self.signature_name))
            # Concatenated protobuf messages parse as one message.
            return Exchange(head.path, head.body + self.inputs)
        message = official.PredictRequest.FromString(self.inputs)
        arrays = {name: tensor.from_proto(proto) for name, proto in message.inputs.items()}
        return predict_exchange(protocol, spec, arrays, self.signature_name, tuple(message.output_filter))


def recorded_requests(recording: Recording, signature: Signature) -> Iterator[RecordedRequest]:
    """Yield the requests of the signature after validation. Raises BadInput."""
    with_rows = has_rows(signature)
    for number, logged in enumerate(recording.logged, start=1):
        try:
            message = official.PredictRequest.FromString(logged.inputs)
            rows = _rows(message, signature)
            _check_answer(logged.answer, signature)
        except (DecodeError, BadInput) as error:
            raise BadInput(f"{recording.title}: request {number}: {error}") from None
        yield RecordedRequest(logged.inputs, signature.name, rows if with_rows else 1, logged.answer)


def _check_answer(answer: bytes, signature: Signature) -> None:
    outputs = official.PredictResponse.FromString(answer).outputs
    if outputs.keys() - signature.outputs.keys():
        raise BadInput(
            f"the model's outputs are {sorted(signature.outputs)}; the recorded response has {sorted(outputs)}"
        )


def _rows(message: official.PredictRequest, signature: Signature) -> int:
    if message.inputs.keys() != signature.inputs.keys():
        raise BadInput(
            f"the model's inputs are {sorted(signature.inputs)}; the recorded request has {sorted(message.inputs)}"
        )
    shapes = [_shape(proto, signature.inputs[name]) for name, proto in message.inputs.items()]
    return shapes[0][0] if shapes and shapes[0] else 1


def _shape(proto: official.TensorProto, spec: TensorSpec) -> tuple[int, ...]:
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    wanted = shape if spec.shape is None else spec.shape
    fits = len(wanted) == len(shape) and all(want in (None, got) for want, got in zip(wanted, shape, strict=True))
    dtype = dtypes.from_wire(proto.dtype)
    if not fits or (spec.dtype is not None and dtype != spec.dtype):
        raise BadInput(f"the model's input is {spec}; the recorded request has {describe(dtype)}{list(shape)}")
    return shape
