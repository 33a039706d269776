"""The common part of the Open Inference Protocol's two wires: input tensors, parameters, metadata and refusals.

Triton and KServe use this protocol (OIP, github.com/kserve/open-inference-protocol). It describes only the default
signature of a model. tpuserve takes the name of another signature as its own parameter. The protocol has no labels
of versions, no Classify and no Regress.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple, NoReturn, TypeAlias

from tpuserve_client.arrays import check_size, little_endian
from tpuserve_client.decimal_text import read_decimal
from tpuserve_client.dtypes import Array, DType
from tpuserve_client.errors import Internal, InvalidArgument, TpuserveError, Unavailable
from tpuserve_client.exchange import ExampleCall, Exchange, PredictCall, Priority, Reply
from tpuserve_client.model import (
    DEFAULT_SIGNATURE_NAME,
    Classifications,
    Metadata,
    ModelSpec,
    Prediction,
    Signature,
    State,
    TensorSpec,
    VersionStatus,
)
from tpuserve_client.names import check_name, shown
from tpuserve_formats.errors import FormatError
from tpuserve_formats.oip.datatypes import datatype_of, dtype_of
from tpuserve_formats.oip.raw_tensor import Buffer, encode_raw

# Name, datatype and shape of a tensor in a model's metadata, with -1 for an unknown dimension.
TensorMetadata: TypeAlias = tuple[str, str, tuple[int, ...]]

# Triton's levels: 0 is the model's default, and a larger number is a lower priority.
_PRIORITIES: Final[Mapping[Priority, int]] = {"high": 1, "low": 2}
# A parameter of tpuserve. Other servers ignore it or refuse it.
_SIGNATURE_NAME: Final = "signature_name"
_USE_TF: Final = "Use an address of TensorFlow Serving's protocol, host:port or http://host:port."
# Why a model is not ready. The protocol reports no cause.
NOT_READY: Final = "it reports that it is not ready"


class InputTensor(NamedTuple):
    """An encoded input. `data` is a view of the caller's array unless that is a string array or not contiguous."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Buffer


class OipWire:
    """The part of both wires without messages. Raises InvalidArgument for calls that the protocol lacks."""

    needs_signature: ClassVar[bool] = False
    not_ready: ClassVar[tuple[type[TpuserveError], ...]] = (Unavailable,)

    def version(self, reply: Reply) -> int | None:
        return None

    def classify(self, call: ExampleCall) -> Exchange:
        _refuse("Classify")

    def read_classifications(self, reply: Reply, call: ExampleCall) -> Classifications:
        _refuse("Classify")

    def regress(self, call: ExampleCall) -> Exchange:
        _refuse("Regress")

    def read_regressions(self, reply: Reply, call: ExampleCall) -> Array:
        _refuse("Regress")


@dataclass(frozen=True, slots=True)
class OipMetadata(Metadata):
    """Metadata with the only signature that the protocol describes. The model may have others."""

    def signature(self, name: str | None = None) -> Signature:
        if name is not None:
            check_name("name of the signature", name)
        if name and name not in self.signatures:
            raise InvalidArgument(
                f"The Open Inference Protocol does not describe signature {shown(name)} of model {self.model}. Pass "
                f"arrays by name, without max_batch_size. {_USE_TF}"
            )
        return Metadata.signature(self, name)


def input_tensors(call: PredictCall) -> list[InputTensor]:
    """Encode the inputs. Raises InvalidArgument for dtypes that the protocol lacks, and above 2 GiB."""
    check_size(call.inputs)
    return [_input_tensor(name, little_endian(array)) for name, array in call.inputs.items()]


def input_datatype(name: str, dtype: DType) -> str:
    """Return the datatype of an input. Raises InvalidArgument for a dtype that the protocol lacks."""
    try:
        return datatype_of(dtype)
    except FormatError as error:
        _refuse_input(name, error)


def request_parameters(call: PredictCall) -> dict[str, str | int]:
    """Return the parameters of a request."""
    parameters: dict[str, str | int] = {}
    if call.priority is not None:
        parameters["priority"] = _PRIORITIES[call.priority]
    if call.signature_name:
        parameters[_SIGNATURE_NAME] = call.signature_name
    return parameters


def version_text(spec: ModelSpec) -> str:
    """Return the version as text, empty for the latest. Raises InvalidArgument for a label."""
    if spec.label is not None:
        _refuse("version labels")
    return "" if spec.version is None else str(spec.version)


def refuse_labels(*, with_labels: bool) -> None:
    """Raise InvalidArgument if the caller requests the labels of classes."""
    if with_labels:
        _refuse("labels of classes")


def prediction(call: PredictCall, outputs: Mapping[str, Array], model: str, version: object) -> Prediction:
    """Return the requested outputs. `version` is the text of the response. Raises Internal for a missing output."""
    if missing := [name for name in call.output_filter if name not in outputs]:
        raise Internal(f"Model {call.spec} did not return output {missing[0]}, only {sorted(outputs)}.")
    number = _version(version)
    return Prediction(
        {name: outputs[name] for name in call.output_filter} if call.output_filter else outputs,
        model=model or call.spec.name,
        version=call.spec.version if number is None else number,
        signature_name=call.signature_name or DEFAULT_SIGNATURE_NAME,
    )


def metadata(
    spec: ModelSpec,
    model: str,
    versions: Iterable[object],
    inputs: Iterable[TensorMetadata],
    outputs: Iterable[TensorMetadata],
) -> Metadata:
    """Return the metadata of the version in `spec`, or of the latest of `versions`."""
    numbers = _numbers(versions)
    signature = Signature(DEFAULT_SIGNATURE_NAME, _tensor_specs(inputs), _tensor_specs(outputs))
    return OipMetadata(
        model=model or spec.name,
        version=spec.version if spec.version is not None else next(iter(numbers), None),
        signatures={DEFAULT_SIGNATURE_NAME: signature},
    )


def statuses(versions: Iterable[object]) -> tuple[VersionStatus, ...]:
    """Return the state of the versions in a model's metadata, newest first. A server lists only ready versions."""
    return tuple(VersionStatus(number, State.AVAILABLE) for number in _numbers(versions))


def _input_tensor(name: str, array: Array) -> InputTensor:
    datatype = input_datatype(name, array.dtype)
    try:
        return InputTensor(name, datatype, array.shape, encode_raw(array))
    except FormatError as error:
        _refuse_input(name, error)


def _refuse_input(name: str, error: FormatError) -> NoReturn:
    raise InvalidArgument(f"Input {name}: {error}. {_USE_TF}") from None


def _refuse(what: str) -> NoReturn:
    raise InvalidArgument(f"The Open Inference Protocol has no {what}. {_USE_TF}")


def _numbers(versions: Iterable[object]) -> list[int]:
    """Return the versions that are numbers, newest first. Other servers than tpuserve may use other texts."""
    return sorted({number for text in versions if (number := _version(text)) is not None}, reverse=True)


def _version(text: object) -> int | None:
    return read_decimal(text) if isinstance(text, str) else None


def _tensor_specs(tensors: Iterable[TensorMetadata]) -> dict[str, TensorSpec]:
    return {
        name: TensorSpec(name, _dtype(datatype), tuple(size if size >= 0 else None for size in shape))
        for name, datatype, shape in tensors
    }


def _dtype(datatype: str) -> DType | None:
    try:
        return dtype_of(datatype)
    except FormatError:
        return None
