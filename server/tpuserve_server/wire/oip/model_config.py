"""A model's configuration as Triton's ModelConfig: the properties that clients read, with the values of this server."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tpuserve_formats.messages.oip import ModelConfig, ModelConfigResponse
from tpuserve_server.core.batching.parameters import BatchingOptions
from tpuserve_server.core.models.model_config import ENSEMBLE_PLATFORM, VersionPolicy
from tpuserve_server.core.terms.ensemble import EnsembleStep
from tpuserve_server.core.terms.types import Signature, TensorSpec
from tpuserve_server.wire.oip.message_json import message_to_json
from tpuserve_server.wire.oip.metadata import PLATFORM, datatype_text, shape_sizes

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
    return ModelConfigResponse(config=_message(model)).SerializeToString()


def model_config_to_json(model: ModelFacts) -> dict[str, object]:
    """Build the REST response."""
    return message_to_json(_message(model))


def _message(model: ModelFacts) -> _Message:
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
    # Priority 1 is high, and all others are low (parameters.py).
    message.priority_levels = 2
    message.default_priority_level = 1
    message.SetInParent()
