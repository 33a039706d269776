"""Descriptions of the server and of models: metadata, statistics and Triton's ModelConfig, as messages and in JSON."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from google.protobuf.message import Message

from tpuserve_formats.errors import FormatError
from tpuserve_formats.messages.oip import (
    InferBatchStatistics,
    InferStatistics,
    ModelConfig,
    ModelConfigResponse,
    ModelMetadataResponse,
    ModelStatistics,
    ModelStatisticsResponse,
    ServerMetadataResponse,
    StatisticDuration,
)
from tpuserve_formats.oip.datatypes import datatype_of
from tpuserve_server.core.batching.parameters import BatchingOptions
from tpuserve_server.core.models.model_config import ENSEMBLE_PLATFORM, VersionPolicy
from tpuserve_server.core.terms.ensemble import EnsembleStep
from tpuserve_server.core.terms.statistics import Total, VersionStatistics
from tpuserve_server.core.terms.types import ServableId, Signature, TensorSpec

# The protocol's name for the framework (kserve/open-inference-protocol, inference_rest.md, "Platforms").
PLATFORM = "tensorflow_savedmodel"


@dataclass(frozen=True, slots=True)
class ServerDescription:
    """The server's name, version and extensions of the protocol."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A model's name, its versions that answer requests, and the signature that requests use by default."""

    name: str
    versions: tuple[int, ...]
    platform: str
    signature: Signature


def encode_server(server: ServerDescription) -> bytes:
    """Serialize a ServerMetadataResponse."""
    response = ServerMetadataResponse(name=server.name, version=server.version, extensions=server.extensions)
    return response.SerializeToString()


def server_to_json(server: ServerDescription) -> dict[str, object]:
    """Build the REST response."""
    return {"name": server.name, "version": server.version, "extensions": list(server.extensions)}


def encode_model(model: ModelDescription) -> bytes:
    """Serialize a ModelMetadataResponse."""
    response = ModelMetadataResponse(
        name=model.name,
        versions=[str(number) for number in model.versions],
        platform=model.platform,
        inputs=[_tensor_message(name, spec) for name, spec in model.signature.inputs.items()],
        outputs=[_tensor_message(name, spec) for name, spec in model.signature.outputs.items()],
    )
    return response.SerializeToString()


def model_to_json(model: ModelDescription) -> dict[str, object]:
    """Build the REST response."""
    return {
        "name": model.name,
        "versions": [str(number) for number in model.versions],
        "platform": model.platform,
        "inputs": _tensors_to_json(model.signature.inputs),
        "outputs": _tensors_to_json(model.signature.outputs),
    }


def datatype_text(spec: TensorSpec) -> str:
    """Return a tensor's datatype, or numpy's name in capitals for a dtype that the protocol has no datatype for."""
    try:
        return datatype_of(spec.dtype)
    except FormatError:
        return str(spec.dtype).upper()


def shape_sizes(spec: TensorSpec) -> list[int]:
    """Return a tensor's shape with -1 for unknown dimensions, and [-1] for an unknown rank, which has no form."""
    if spec.shape is None:
        return [-1]
    return [-1 if size is None else size for size in spec.shape]


def _tensor_message(name: str, spec: TensorSpec) -> ModelMetadataResponse.TensorMetadata:
    return ModelMetadataResponse.TensorMetadata(name=name, datatype=datatype_text(spec), shape=shape_sizes(spec))


def _tensors_to_json(specs: Mapping[str, TensorSpec]) -> list[dict[str, object]]:
    return [{"name": name, "datatype": datatype_text(spec), "shape": shape_sizes(spec)} for name, spec in specs.items()]


# protobuf's implementations have different classes of descriptors.
_Field: TypeAlias = Any


def _message_to_json(message: Message) -> dict[str, object]:
    """Return a JSON object with every field, except messages and members of a oneof that are not set.

    Its form is Triton's (core/src/model_config_utils.cc, ModelConfigToJson), which is not protobuf's: original names,
    all defaults, and integers as numbers.
    """
    return {
        field.name: _field(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if field.is_repeated or not field.has_presence or message.HasField(field.name)
    }


def _field(field: _Field, value: Any) -> object:  # noqa: ANN401 (the value of any field)
    if not field.is_repeated:
        return _value(field, value)
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        kind = entry.fields_by_name["value"]
        return {str(key): _value(kind, each) for key, each in value.items()}
    return [_value(field, each) for each in value]


def _value(field: _Field, value: Any) -> object:  # noqa: ANN401 (as above)
    if field.message_type is not None:
        return _message_to_json(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value


def encode_statistics(statistics: Mapping[ServableId, VersionStatistics]) -> bytes:
    """Serialize a ModelStatisticsResponse, in the order of the mapping."""
    return _message(statistics).SerializeToString()


def statistics_to_json(statistics: Mapping[ServableId, VersionStatistics]) -> dict[str, object]:
    """Build the REST response."""
    return _message_to_json(_message(statistics))


def _message(statistics: Mapping[ServableId, VersionStatistics]) -> ModelStatisticsResponse:
    return ModelStatisticsResponse(model_stats=[_version(servable, each) for servable, each in statistics.items()])


def _version(servable: ServableId, each: VersionStatistics) -> ModelStatistics:
    # Joining the rows of a batch is a part of its run. Splitting the outputs is not measured.
    unmeasured = Total(each.compute.count)
    return ModelStatistics(
        name=servable.name,
        version=str(servable.version),
        last_inference=each.last_inference_ms,
        inference_count=each.rows,
        execution_count=each.batches,
        inference_stats=InferStatistics(
            success=_duration(each.success),
            fail=_duration(each.fail),
            queue=_duration(each.queue),
            compute_input=_duration(unmeasured),
            compute_infer=_duration(each.compute),
            compute_output=_duration(unmeasured),
            cache_hit=_duration(each.cache_hit),
            cache_miss=_duration(each.cache_miss),
        ),
        batch_stats=[_batches(rows, total) for rows, total in each.sizes],
    )


def _batches(rows: int, total: Total) -> InferBatchStatistics:
    unmeasured = Total(total.count)
    return InferBatchStatistics(
        batch_size=rows,
        compute_input=_duration(unmeasured),
        compute_infer=_duration(total),
        compute_output=_duration(unmeasured),
    )


def _duration(total: Total) -> StatisticDuration:
    return StatisticDuration(count=total.count, ns=total.ns)


_BACKEND = "tensorflow"
# Triton's name of string tensors differs in configurations.
_TYPES = {"BYTES": "STRING"}
_CHANNELS = (1, 3)
# Triton's version of a step that runs the latest one.
_LATEST = -1
# `oip.pyi` has no class for configurations.
_Message: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The properties of a model and its default signature. `batching` is None if requests run one by one.

    `default_rows` is the limit of rows for a signature without `batching`. `policy` is None if it is unknown.
    `caches_responses` states whether the version has a response cache. `steps` are those of an ensemble.
    """

    name: str
    signature: Signature
    has_labels: bool
    batching: BatchingOptions | None
    default_rows: int
    policy: VersionPolicy | None = None
    caches_responses: bool = False
    steps: Sequence[EnsembleStep] = ()


def encode_model_config(model: ModelFacts) -> bytes:
    """Serialize a ModelConfigResponse."""
    return ModelConfigResponse(config=_config_message(model)).SerializeToString()


def model_config_to_json(model: ModelFacts) -> dict[str, object]:
    """Build the REST response."""
    return _message_to_json(_config_message(model))


def _config_message(model: ModelFacts) -> _Message:
    signature = model.signature
    # The metadata has the batch dimension in all shapes, and `dims` have it only without batches.
    first = 1 if signature.is_batchable else 0
    config = ModelConfig(name=model.name)
    if model.steps:
        config.platform = ENSEMBLE_PLATFORM
        _fill_steps(config.ensemble_scheduling, model.steps)
    else:
        config.platform, config.backend = PLATFORM, _BACKEND
    if first:
        config.max_batch_size = model.default_rows if model.batching is None else model.batching.max_batch_size
    for name, spec in signature.inputs.items():
        tensor = config.input.add(name=name, data_type=_data_type(spec), dims=shape_sizes(spec)[first:])
        tensor.optional = name in signature.defaults
        tensor.format = _format(tensor.dims)
    for name, spec in signature.outputs.items():
        tensor = config.output.add(name=name, data_type=_data_type(spec), dims=shape_sizes(spec)[first:])
        tensor.label_filename = "labels.txt" if model.has_labels else ""
    if model.policy is not None:
        _fill_policy(config.version_policy, model.policy)
    if model.batching is not None:
        _fill_batching(config.dynamic_batching, model.batching)
    config.model_transaction_policy.decoupled = False
    config.response_cache.enable = model.caches_responses
    return config


def _data_type(spec: TensorSpec) -> int:
    datatype = datatype_text(spec)
    kinds = ModelConfig.DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_name
    kind = kinds.get(f"TYPE_{_TYPES.get(datatype, datatype)}", kinds["TYPE_INVALID"])
    return int(kind.number)


def _format(dims: Iterable[int]) -> str:
    """Return the layout of an image by its channels. Triton's image clients need it, and a SavedModel has none."""
    sizes = [*dims]
    if len(sizes) != 3:
        return "FORMAT_NONE"
    if sizes[2] in _CHANNELS:
        return "FORMAT_NHWC"
    return "FORMAT_NCHW" if sizes[0] in _CHANNELS else "FORMAT_NONE"


def _fill_steps(message: _Message, steps: Sequence[EnsembleStep]) -> None:
    for step in steps:
        number = _LATEST if step.model.version is None else step.model.version
        message.step.add(
            model_name=step.model.name,
            model_version=number,
            input_map=dict(step.inputs),
            output_map=dict(step.outputs),
        )


def _fill_policy(message: _Message, policy: VersionPolicy) -> None:
    if policy.count is not None:
        message.latest.num_versions = policy.count
    elif policy.versions is not None:
        message.specific.versions.extend(policy.versions)
    else:
        message.all.SetInParent()


def _fill_batching(message: _Message, batching: BatchingOptions) -> None:
    message.preferred_batch_size.extend(batching.buckets)
    message.max_queue_delay_microseconds = round(batching.timeout_s * 1e6)
    # Priority 1 is high, and all others are low (inference.py).
    message.priority_levels = 2
    message.default_priority_level = 1
    message.SetInParent()
