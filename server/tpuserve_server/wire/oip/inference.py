"""Value types of an inference request and its result, shared by gRPC and REST."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tpuserve_server.core.terms.types import CacheOutcome, ServableId, Tensors
from tpuserve_server.wire.oip.parameters import NO_PARAMETERS, RequestParameters
from tpuserve_server.wire.oip.region import RegionWindow

if TYPE_CHECKING:
    from tpuserve_formats.messages.oip import InferTensorContents
    from tpuserve_server.wire.oip.tensor_json import JsonData

TensorData: TypeAlias = "bytes | memoryview | JsonData | InferTensorContents"


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
    raw_input: bytes | None = None
    # Size of the request's message.
    size_bytes: int = 0
    # Windows of the inputs in shared memory, by the index of the input, or None if no tensor is in shared memory.
    windows: Mapping[int, RegionWindow] | None = None

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the requested outputs. Empty means all."""
        return tuple([output.name for output in self.outputs]) if self.outputs else ()

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
