"""TensorFlow Serving's REST bodies: bytes in, bytes out, without an HTTP client.

Predictions use the columnar form ("inputs", "outputs"). It round-trips every shape, including scalars and tensors
without a common first dimension. JSON contains no dtypes, so reading a reply requires the model's signature.
"""

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias, TypeVar
from urllib.parse import quote

from tpuserve_client import dtypes, rest_examples
from tpuserve_client.arrays import check_size
from tpuserve_client.decimal_text import read_decimal
from tpuserve_client.dtypes import Array
from tpuserve_client.errors import Code, Internal, InvalidArgument, TpuserveError, Unavailable
from tpuserve_client.exchange import ExampleCall, Exchange, PredictCall, Reply
from tpuserve_client.json_reply import parse_object
from tpuserve_client.json_tensor import from_json, keeps_shape, to_json
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
from tpuserve_client.readiness import obstacle

# tpuserve reports the version that answered. TensorFlow Serving does not.
VERSION_HEADER = "x-tpuserve-model-version"

_to_text = json.JSONEncoder(separators=(",", ":")).encode

T = TypeVar("T")
_Json: TypeAlias = Any  # any result of json.loads; read defensively below


class RestWire:
    """Wire over JSON. The server always returns all outputs; the client applies `output_filter`."""

    needs_signature: ClassVar[bool] = True
    not_ready: ClassVar[tuple[type[TpuserveError], ...]] = (Unavailable,)

    def predict(self, call: PredictCall) -> Exchange:
        check_size(call.inputs)
        body: dict[str, _Json] = {"inputs": {name: _input(name, array) for name, array in call.inputs.items()}}
        if call.signature_name:
            body["signature_name"] = call.signature_name
        content = _to_text(body).encode()
        return Exchange(f"{_model_path(call.spec)}:predict", content, headers=call.headers)

    def version(self, reply: Reply) -> int | None:
        return read_decimal(reply.headers.get(VERSION_HEADER, ""))

    def read_prediction(self, reply: Reply, call: PredictCall, signature: Signature | None) -> Prediction:
        if signature is None:
            raise ValueError("a REST prediction cannot be read without its signature")
        document = _object(reply)
        try:
            outputs = _outputs(document["outputs"], signature)
        except (KeyError, ValueError, RecursionError) as error:
            raise Internal(f"Model {call.spec} returned outputs that its signature does not have: {error}") from None
        version = self.version(reply)
        return Prediction(
            _chosen(outputs, call.output_filter),
            model=call.spec.name,
            version=call.spec.version if version is None else version,
            signature_name=call.signature_name or DEFAULT_SIGNATURE_NAME,
        )

    def metadata(self, spec: ModelSpec, *, with_labels: bool = False) -> Exchange:
        query = "?metadata_field=tpuserve_labels" if with_labels else ""
        return Exchange(f"{_model_path(spec)}/metadata{query}", method="GET")

    def read_metadata(self, reply: Reply, spec: ModelSpec) -> Metadata:
        document = _object(reply)
        try:
            version = document["model_spec"].get("version")
            signatures = document["metadata"]["signature_def"]["signature_def"]
            return Metadata(
                model=spec.name,
                version=None if version is None else int(version),
                signatures={name: _signature(name, value) for name, value in signatures.items()},
                labels=tuple(str(label) for label in document["metadata"].get("tpuserve_labels", ())),
            )
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise Internal(f"The server's metadata of model {spec} is invalid: {error!r}") from None

    def status(self, spec: ModelSpec) -> Exchange:
        return Exchange(_model_path(spec), method="GET")

    def read_status(self, reply: Reply) -> tuple[VersionStatus, ...]:
        try:
            return tuple(_version_status(item) for item in _object(reply)["model_version_status"])
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise Internal(f"The server's status is invalid: {error!r}") from None

    def ready(self) -> Exchange:
        return Exchange("/readyz", method="GET")

    def read_ready(self, reply: Reply) -> bool:
        return True  # any status other than 2xx has raised already

    def model_ready(self, spec: ModelSpec) -> Exchange:
        return self.status(spec)

    def read_model_ready(self, reply: Reply) -> str | None:
        return obstacle(self.read_status(reply))

    def classify(self, call: ExampleCall) -> Exchange:
        return _example_exchange(call, "classify")

    def read_classifications(self, reply: Reply, call: ExampleCall) -> Classifications:
        return _read_examples(reply, call, rest_examples.classifications)

    def regress(self, call: ExampleCall) -> Exchange:
        return _example_exchange(call, "regress")

    def read_regressions(self, reply: Reply, call: ExampleCall) -> Array:
        return _read_examples(reply, call, rest_examples.regressions)


def _example_exchange(call: ExampleCall, method: str) -> Exchange:
    content = _to_text(rest_examples.request_document(call)).encode()
    return Exchange(f"{_model_path(call.spec)}:{method}", content, headers=call.headers)


def _read_examples(reply: Reply, call: ExampleCall, read: Callable[[list[_Json]], T]) -> T:
    document = _object(reply)
    try:
        rows = rest_examples.results(document)
        call.check_count(len(rows))
        return read(rows)
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise Internal(f"Model {call.spec} returned invalid results: {error!r}") from None


def _input(name: str, array: Array) -> _Json:
    if not keeps_shape(array):
        raise InvalidArgument(
            f"Input {name} has shape {list(array.shape)}, which JSON cannot represent: an empty list has no inner "
            "dimensions. Use gRPC."
        )
    return to_json(array)


@lru_cache(maxsize=1024)
def _model_path(spec: ModelSpec) -> str:
    # HTTP clients and proxies remove these parts from a path. The request would then reach another model.
    if {spec.name, spec.label} & {".", "..", ""}:
        raise InvalidArgument(f"A REST path cannot name the model {spec.name!r}, label {spec.label!r}. Use gRPC.")
    path = f"/v1/models/{quote(spec.name, safe='')}"
    if spec.version is not None:
        return f"{path}/versions/{spec.version}"
    return f"{path}/labels/{quote(spec.label, safe='')}" if spec.label is not None else path


def _object(reply: Reply) -> dict[str, _Json]:
    try:
        return parse_object(reply.body)
    except ValueError as error:
        raise Internal(f"The server's response is {error}") from None


def _outputs(value: _Json, signature: Signature) -> dict[str, Any]:
    if len(signature.outputs) == 1:  # the server omits the name of a single output
        ((name, spec),) = signature.outputs.items()
        return {name: from_json(value, spec)}
    if not isinstance(value, dict) or value.keys() != signature.outputs.keys():
        raise ValueError(f"{sorted(signature.outputs)} expected")
    return {name: from_json(value[name], spec) for name, spec in signature.outputs.items()}


def _chosen(outputs: Mapping[str, Any], names: tuple[str, ...]) -> Mapping[str, Any]:
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InvalidArgument(f"duplicate output tensor alias: {repeated[0]}")
    if missing := [name for name in names if name not in outputs]:
        raise InvalidArgument(
            f"output tensor alias not found in signature: {missing[0]} "
            f"Outputs expected to be in the set {{{','.join(sorted(outputs))}}}."
        )
    return {name: outputs[name] for name in names} if names else outputs


def _signature(name: str, value: _Json) -> Signature:
    return Signature(
        name=name,
        inputs={key: _tensor_spec(key, info) for key, info in value.get("inputs", {}).items()},
        outputs={key: _tensor_spec(key, info) for key, info in value.get("outputs", {}).items()},
        method_name=value.get("method_name", ""),
    )


def _tensor_spec(name: str, info: _Json) -> TensorSpec:
    shape = info.get("tensor_shape") or {}
    sizes = [int(dim.get("size", 0)) for dim in shape.get("dim", [])]
    known = tuple(size if size >= 0 else None for size in sizes)
    return TensorSpec(name, dtypes.from_name(info["dtype"]), None if shape.get("unknown_rank") else known)


def _version_status(item: _Json) -> VersionStatus:
    status = item.get("status") or {}
    code = status.get("error_code", "OK")
    return VersionStatus(
        version=int(item["version"]),
        state=State.__members__.get(item["state"], State.UNKNOWN),
        error_code=Code.__members__.get(code, Code.UNKNOWN),
        error=status.get("error_message", ""),
    )
