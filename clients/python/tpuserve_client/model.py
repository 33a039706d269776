"""The client's data types: model specs, signatures, predictions and version states."""

import enum
import json
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from tpuserve_client.dtypes import Array, DType, describe
from tpuserve_client.errors import Code, InvalidArgument
from tpuserve_client.names import check_name, shown
from tpuserve_client.plain import NonFinite, plain_values

# Default signature of a call (tensorflow/saved_model/signature_constants).
DEFAULT_SIGNATURE_NAME = "serving_default"


def _version(model: str, value: object) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # TypeError says what it is not
    except Exception:  # __index__ of a caller's object can raise anything
        number = None
    if number is None or isinstance(value, bool) or not -(2**63) <= number < 2**63:
        raise InvalidArgument(f"Model {model}: {shown(value)} is not a valid version. Expected an int64.")
    return number


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model and its version: a number, a label, or neither for the latest.

    `version` takes any integer type. Raises InvalidArgument for both, for a version outside int64, and for a name or
    label that is not a string or has no UTF-8 encoding.
    """

    name: str
    version: int | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        check_name("name of the model", self.name)
        if self.label is not None:
            check_name("label", self.label)
        if self.version is None:
            return
        if self.label is not None:
            raise InvalidArgument(f"Model {self.name}: set either a version or a label, not both.")
        if type(self.version) is not int or not -(2**63) <= self.version < 2**63:
            object.__setattr__(self, "version", _version(self.name, self.version))  # an int is hashable and prints so

    def __str__(self) -> str:
        which = f" version {self.version}" if self.version is not None else f" label {self.label}" if self.label else ""
        return f"{self.name}{which}"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a signature.

    `dtype` is None if numpy has no such type; strings have dtype object and hold `bytes`. `shape` is None for an
    unknown rank; a None in it is an unknown dimension.
    """

    name: str
    dtype: DType | None
    shape: tuple[int | None, ...] | None

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.name}: {describe(self.dtype)}[…]"
        return f"{self.name}: {describe(self.dtype)}[{', '.join('?' if n is None else str(n) for n in self.shape)}]"


@dataclass(frozen=True, slots=True)
class Signature:
    """A callable part of a model: named inputs to named outputs."""

    name: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    method_name: str = ""


@dataclass(frozen=True, slots=True)
class Metadata:
    """The signatures of one version of a model. `version` is None only if the server did not report it.

    `labels` are the class names in the order of the scores, or empty if the caller did not request them.
    """

    model: str
    version: int | None
    signatures: Mapping[str, Signature]
    labels: tuple[str, ...] = ()

    def signature(self, name: str | None = None) -> Signature:
        """Return the signature `name`, or the default signature. Raises InvalidArgument if it does not exist."""
        if name is not None:
            check_name("name of the signature", name)
        wanted = name or DEFAULT_SIGNATURE_NAME
        try:
            return self.signatures[wanted]
        except KeyError:
            raise InvalidArgument(
                f'Model {self.model} has no signature "{wanted}". Its signatures are {sorted(self.signatures)}.'
            ) from None


@dataclass(frozen=True, slots=True, eq=False)  # comparing arrays gives no single truth value
class Prediction(Mapping[str, Array]):
    """Named output arrays, with the model, version and signature that produced them.

    `version` is None if the server does not report it. TensorFlow Serving does not report it over REST. Arrays may be
    read-only views of the response: copy an array before you write to it.
    """

    outputs: Mapping[str, Array]
    model: str
    version: int | None
    signature_name: str

    def __getitem__(self, name: str) -> Array:
        try:
            return self.outputs[name]
        except KeyError:
            raise KeyError(f"{self.model} has no output {name!r}; its outputs are {sorted(self.outputs)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)

    def to_dict(self, *, non_finite: NonFinite = "null") -> dict[str, Any]:
        """Return the prediction as plain Python values, for the JSON response of a web application.

        Example::

            @app.post("/classify")
            def classify(image: list[list[float]]) -> dict[str, Any]:
                return client.predict("digits", [image]).to_dict()

        The keys are `model`, `version`, `signature_name` and `outputs`. Each output is a nested list of numbers, bools
        or str, or a bare value without dimensions. Bytes that are not UTF-8 become {"b64": …}, and a complex number
        becomes [real, imaginary].

        JSON has no NaN and no infinities, and many encoders refuse them, such as FastAPI's. `non_finite` selects their
        form: "null" gives None, "string" gives "NaN", "Infinity" and "-Infinity", and "float" keeps Python's floats.
        """
        return {
            "model": self.model,
            "version": self.version,
            "signature_name": self.signature_name,
            "outputs": {name: plain_values(array, non_finite) for name, array in self.outputs.items()},
        }

    def to_json(self, *, non_finite: NonFinite = "null") -> str:
        """Return `to_dict` as a JSON text. With "float", NaN, Infinity and -Infinity are bare tokens, which are not
        JSON, but which TensorFlow Serving and Python's json module read and write.
        """
        return json.dumps(self.to_dict(non_finite=non_finite))


class ScoredClass(NamedTuple):
    """A class of a classification: its label, empty if the model has no labels, and its score, 0 without scores."""

    label: str
    score: float


# The classes of each example, in the model's order.
Classifications: TypeAlias = tuple[tuple[ScoredClass, ...], ...]


class State(enum.IntEnum):
    """A version's state, which only moves forward. Names and numbers match ModelVersionStatus.State."""

    UNKNOWN = 0
    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """A version's state and the reason for it.

    For a failed version, `error_code` and `error` give the cause. Otherwise `error_code` is OK, and `error` names what
    the version waits for: missing files, or the next attempt after a failed load. `error` is empty if nothing is
    pending.
    """

    version: int
    state: State
    error_code: Code = Code.OK
    error: str = ""
