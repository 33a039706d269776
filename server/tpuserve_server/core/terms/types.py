"""The value types of the core: model specs, servables, signatures, requests and results."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

# Any dtype that numpy holds, including bfloat16 (ml_dtypes) and object (strings, as bytes).
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Tensors: TypeAlias = Mapping[str, Array]

# The message or body of a request: a bytearray if the host has aligned a large tensor in it. No code changes the
# bytearray, and readers copy the parts that they hash.
Body: TypeAlias = bytes | bytearray

# Names of a ragged tensor's row splits, outermost first, by the name of its values.
RowSplits: TypeAlias = Mapping[str, tuple[str, ...]]

# The signature of a request that names none (tensorflow/saved_model/signature_constants).
DEFAULT_SIGNATURE_NAME = "serving_default"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The model that a request names. At most one of `version` and `version_label` is set. Neither means the latest."""

    name: str
    version: int | None = None
    version_label: str | None = None
    signature_name: str = ""

    def with_signature(self, name: str) -> "ModelSpec":
        """Return the spec with another signature, or the same object for an empty name."""
        return ModelSpec(self.name, self.version, self.version_label, name) if name else self


@dataclass(frozen=True, slots=True, order=True)
class ServableId:
    """One version of one model, as a spec resolves to it."""

    name: str
    version: int

    def __str__(self) -> str:
        return f"{{name: {self.name} version: {self.version}}}"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a signature.

    `shape` is None for an unknown rank, and None in it is an unknown dimension. Strings have dtype object and hold
    bytes. `graph_name` is the tensor's name in the model's graph, shown in metadata.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None
    graph_name: str = ""

    def accepts_shape(self, shape: tuple[int, ...]) -> bool:
        """Return whether an array of `shape` has this rank and agrees in every known dimension."""
        if self.shape is None:
            return True
        if len(shape) != len(self.shape):
            return False
        # A loop instead of all(), because this runs for every input of every request.
        for want, got in zip(self.shape, shape, strict=True):  # noqa: SIM110
            if want is not None and want != got:
                return False
        return True

    @property
    def has_batch_dimension(self) -> bool:
        """Whether the first dimension exists and is unknown, so that rows of several requests can share a batch."""
        return bool(self.shape) and self.shape is not None and self.shape[0] is None


# By method name (tensorflow/cc/saved_model/signature_constants.h).
_APIS = {"tensorflow/serving/classify": "Classify", "tensorflow/serving/regress": "Regress"}


@dataclass(frozen=True, slots=True)
class Signature:
    """A callable part of a model, from named inputs to named outputs. An input with a default may be omitted.

    A ragged tensor has several inputs or outputs: its values, and row splits for each ragged dimension. `has_effects`:
    a run may change the answers to later ones, or something outside of the model.
    """

    name: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    method_name: str = ""
    defaults: Mapping[str, Array] = field(default_factory=dict)
    ragged_inputs: RowSplits = field(default_factory=dict)
    ragged_outputs: RowSplits = field(default_factory=dict)
    has_effects: bool = False

    @property
    def api(self) -> str:
        """The signature's purpose in TensorFlow Serving's metrics: `Predict`, `Classify` or `Regress`."""
        return _APIS.get(self.method_name, "Predict")

    @property
    def is_batchable(self) -> bool:
        """Whether every input and output has a free first dimension, and none is a part of a ragged tensor.

        Row splits count from the first row of a request, so a batch cannot hold those of two requests.
        """
        if self.ragged_inputs or self.ragged_outputs:
            return False
        specs = [*self.inputs.values(), *self.outputs.values()]
        return bool(self.inputs) and all(spec.has_batch_dimension for spec in specs)


# Whether a response came from the response cache. Empty for a model without one.
CacheOutcome: TypeAlias = Literal["", "hit", "miss"]


class PredictResult:
    """Named output arrays, and the servable and signature that produced them. No caller may write to either.

    No frozen dataclass, because that takes three times as long to create, and every request creates one.
    """

    __slots__ = ("cache", "outputs", "servable", "signature_name")

    def __init__(self, servable: ServableId, signature_name: str, outputs: Tensors, cache: CacheOutcome = "") -> None:
        """Store the arguments."""
        self.servable = servable
        self.signature_name = signature_name
        self.outputs = outputs
        self.cache = cache


class State(enum.IntEnum):
    """A version's state, which only moves forward. Names and numbers are those of ModelVersionStatus.State."""

    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """A version's state, and the reason if it has failed. `notes` are for people: device, batching, buckets.

    `waits` names what a version waits for: its files, the retry after a failed load, or the end of its requests. Of a
    version that serves, it names the run that hangs, or the input shapes that it refuses.
    """

    servable: ServableId
    state: State
    error: str = ""
    error_code: int = 0
    notes: tuple[str, ...] = ()
    waits: str = ""


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """The progress of an explicit load of a model. It continues while `serves` is False and the rest is empty.

    `absent` is the reason why there is no version to load. `failed` holds the versions whose load failed, for good or
    with a pending retry.
    """

    serves: bool = False
    absent: str = ""
    failed: tuple[VersionStatus, ...] = ()


# Most versions that one sentence names.
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Pending:
    """A model's missing parts in its base path. Clients see the reasons, which name no directory.

    `reason` is empty if the source found a version. `versions` maps versions that are not complete to what they lack.
    `new` are those of them that the source has just found: the next look may find that they are complete.
    """

    reason: str = ""
    versions: Mapping[int, str] = field(default_factory=dict)
    new: frozenset[int] = frozenset()

    def describe(self) -> str:
        """Name the newest versions that are not complete, or return the reason, or "" if both are unknown."""
        newest = sorted(self.versions, reverse=True)
        named = [f"version {number} is not complete yet: {self.versions[number]}" for number in newest[:_MOST_NAMED]]
        more = [f"{len(newest) - len(named)} more"] if len(newest) > len(named) else []
        return "; ".join([*named, *more]) or self.reason


@dataclass(frozen=True, slots=True)
class Precision:
    """A version's tolerance. Its exporter found every float within `atol + rtol * |expected|` of the source's.

    `compute_dtype` is the manifest's, such as float32 or mixed_bfloat16.
    """

    compute_dtype: str
    atol: float
    rtol: float


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """Signatures, class names, precision and evaluation of one version.

    Class names may be empty, and precision and evaluation None. The evaluation is the manifest's, as JSON.

    `is_ensemble`: the version runs other models. `configuration_sha256` is the hash of the server's configuration at
    the time of the answer, or empty without a configuration file.
    """

    servable: ServableId
    signatures: Mapping[str, Signature]
    labels: tuple[str, ...] = ()
    precision: Precision | None = None
    evaluation: Mapping[str, object] | None = None
    is_ensemble: bool = False
    configuration_sha256: str = ""
