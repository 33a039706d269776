"""Value types of an inference request and its result, shared by gRPC and REST, and the rules for their fields.

Sources: Triton's parameters extension, http_server.cc and infer_handler.cc (SetInferenceRequestMetadata). Its shared
memory extension and grpc_utils.cc (ParseSharedMemoryParams).
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from tpuserve_server.core.terms.errors import InvalidArgument, shown
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import CacheOutcome, ModelSpec, ServableId, Tensors

if TYPE_CHECKING:
    from tpuserve_formats.messages.oip import InferParameter, InferTensorContents
    from tpuserve_server.wire.oip.tensor_json import JsonArray


# A client may ask for an additional empty last response. Models here have one response, which is the last.
EMPTY_FINAL_RESPONSE: Final = "triton_enable_empty_final_response"
_RESERVED_PREFIX: Final = "triton_"
_MICROSECONDS: Final = 1e6


@dataclass(frozen=True, slots=True)
class RequestParameters:
    """The parameters that the server honours.

    `signature_name` is empty for the default. `priority` is None unless the request has one. `timeout_s` is None for no
    timeout. `binary_data_output` is for REST alone.
    """

    signature_name: str = ""
    priority: Priority | None = None
    timeout_s: float | None = None
    binary_data_output: bool = False


NO_PARAMETERS: Final = RequestParameters()
# The decoder looks at each of their values.
_CHECKED: Final = frozenset({"BYTES", "BOOL"})
REGION: Final = "shared_memory_region"
BYTE_SIZE: Final = "shared_memory_byte_size"
OFFSET: Final = "shared_memory_offset"


class RegionStatus(NamedTuple):
    """A registered region: a window of `byte_size` bytes at `offset` in the object `key`."""

    name: str
    key: str
    offset: int
    byte_size: int


class RegionWindow(NamedTuple):
    """`byte_size` bytes of a registered region. `offset` counts from the start of the region."""

    region: str
    byte_size: int
    offset: int = 0


TensorData: TypeAlias = "bytes | memoryview | JsonArray | InferTensorContents"


class InputTensor(NamedTuple):
    """An input as the client declared it, not yet checked or decoded: raw bytes, JSON data or typed contents.

    The data of an input in shared memory are empty until they are read.
    """

    name: str
    datatype: str
    shape: Sequence[int]
    data: TensorData


class RequestedOutput(NamedTuple):
    """An output to return.

    `classification` is the number of classes to return instead of the values, or 0. `is_binary` is for REST alone.
    `region` is the window of shared memory that receives the contents, or None.
    """

    name: str
    classification: int = 0
    is_binary: bool = False
    region: RegionWindow | None = None


class InferenceRequest(NamedTuple):
    """A parsed request. Release it once its inputs are decoded: JSON data hold several times the memory of their text.

    No `outputs` mean all outputs, binary if `is_binary`. `raw_input` is the body of a REST request without JSON, which
    is the data of the model's only input.
    """

    id: str = ""
    inputs: Sequence[InputTensor] = ()
    outputs: Sequence[RequestedOutput] = ()
    parameters: RequestParameters = NO_PARAMETERS
    is_binary: bool = False
    raw_input: bytes | memoryview | None = None
    # Size of the request's message.
    size_bytes: int = 0
    # Windows of the inputs in shared memory, by the index of the input, or None if no tensor is in shared memory.
    windows: Mapping[int, RegionWindow] | None = None

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the requested outputs. Empty means all."""
        return tuple([output.name for output in self.outputs]) if self.outputs else ()

    @property
    def is_plain(self) -> bool:
        """Whether all data are raw numbers, which become arrays without a look at their values."""
        return self.raw_input is None and all(
            isinstance(tensor.data, bytes | memoryview) and tensor.datatype not in _CHECKED for tensor in self.inputs
        )

    @property
    def has_lasting_bytes(self) -> bool:
        """Whether a client may repeat the request with the same bytes and expect the same bytes of the response.

        Clients number requests by their id, and change the contents of shared memory between requests.
        """
        return not self.id and self.windows is None


class InferenceResult(NamedTuple):
    """Output arrays by name, and the facts about the request that the response depends on."""

    id: str
    servable: ServableId
    outputs: Tensors
    requested: Mapping[str, RequestedOutput]
    is_binary: bool
    # Names of the outputs whose contents are in shared memory.
    in_regions: Collection[str] = ()
    signature_name: str = ""
    # Whether the outputs came from the response cache.
    cache: CacheOutcome = ""


def read_parameters(values: Mapping[str, object]) -> RequestParameters:
    """Return the parameters whose types the protocol's parser has checked. Ignore unknown names.

    Triton's highest priority is 1, and 0 is the default. This server has two: 1 is high, and all larger values are low.

    Raises:
        InvalidArgument: a parameter would make the request part of a sequence, or has a reserved name.
    """
    # In this order: the parameters of a gRPC request have none.
    for name in ("sequence_id", "sequence_start", "sequence_end"):
        if values.get(name):
            raise InvalidArgument(
                f"parameter '{name}' is not supported: models of this server keep no state between requests"
            )
    for name in values:
        if name.startswith(_RESERVED_PREFIX) and name != EMPTY_FINAL_RESPONSE:
            raise InvalidArgument(
                f"parameter keys starting with '{_RESERVED_PREFIX}' are reserved for Triton usage. Only the following "
                f"keys starting with '{_RESERVED_PREFIX}' are allowed: {EMPTY_FINAL_RESPONSE}"
            )
    signature_name, priority = values.get("signature_name", ""), values.get("priority", 0)
    timeout_us, is_binary = values.get("timeout", 0), values.get("binary_data_output", False)
    return RequestParameters(
        shown(signature_name) if isinstance(signature_name, str) else "",
        _priority(priority) if isinstance(priority, int) else None,
        timeout_us / _MICROSECONDS if isinstance(timeout_us, int) and timeout_us else None,
        is_binary is True,
    )


def _priority(number: int) -> Priority | None:
    if not number:
        return None
    return Priority.HIGH if number == 1 else Priority.LOW


def read_window(name: str, parameters: "Mapping[str, InferParameter]") -> RegionWindow | None:
    """Return the window of the tensor `name` over gRPC, or None if its parameters name none.

    Raises:
        InvalidArgument: a parameter is missing, or has the wrong type.
    """
    if REGION not in parameters:
        for other in (OFFSET, BYTE_SIZE):
            if other in parameters:
                raise InvalidArgument(
                    f"'{other}' can not be specified without '{REGION}' parameter for tensor '{name}'"
                )
        return None
    if BYTE_SIZE not in parameters:
        raise InvalidArgument(f"'{BYTE_SIZE}' must be specified along with '{REGION}' parameter for tensor '{name}'")
    return RegionWindow(_text(name, parameters), _size(name, parameters, BYTE_SIZE), _size(name, parameters, OFFSET))


def check_only_region(name: str, others: Collection[str]) -> None:
    """Check that an output in shared memory has no other form. Raises InvalidArgument."""
    for other in others:
        raise InvalidArgument(f"Output can't set both '{REGION}' and '{other}': output '{name}'")


def _text(name: str, parameters: "Mapping[str, InferParameter]") -> str:
    parameter = parameters[REGION]
    if parameter.WhichOneof("parameter_choice") != "string_param":
        raise _wrong_type(name, REGION, "string_param")
    return shown(parameter.string_param)


def _size(name: str, parameters: "Mapping[str, InferParameter]", key: str) -> int:
    if key not in parameters:
        return 0
    parameter = parameters[key]
    if parameter.WhichOneof("parameter_choice") != "int64_param":
        raise _wrong_type(name, key, "int64_param")
    if parameter.int64_param < 0:
        raise InvalidArgument(f"invalid value for '{key}' of tensor '{name}', expected >= 0")
    return parameter.int64_param


def _wrong_type(name: str, key: str, expected: str) -> InvalidArgument:
    return InvalidArgument(f"invalid value type for '{key}' parameter for tensor '{name}', expected {expected}.")


_DIGITS = re.compile(r"[0-9]+", re.ASCII)
_MAX_INT64: Final = (1 << 63) - 1
_MOST_SHOWN: Final = 32


def parse_model_spec(name: str, version: str, signature_name: str = "") -> ModelSpec:
    """Return the spec for a version as text. An empty version means the latest. Raises InvalidArgument."""
    return ModelSpec(shown(name), parse_version(version) if version else None, None, shown(signature_name))


def parse_version(text: str) -> int:
    """Return a version's number. Raises InvalidArgument with Triton's message (server, common.cc)."""
    # Python refuses to convert thousands of digits. An int64 has at most 19 without leading zeros.
    significant = text.lstrip("0") or "0"
    if _DIGITS.fullmatch(text) and len(significant) <= len(str(_MAX_INT64)) and int(significant) <= _MAX_INT64:
        return int(significant)
    raise InvalidArgument(
        f"failed to get model version from specified version string '{text[:_MOST_SHOWN]}', version should be an "
        "integral value > 0"
    )
