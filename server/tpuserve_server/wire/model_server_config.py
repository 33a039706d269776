"""Converts the ModelServerConfig and the BatchingParameters of a file or a reload request to the core's types."""

import dataclasses
import enum
import logging
from collections.abc import Iterable
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from tpuserve_formats.messages._proto.ensemble_scheduling_pb2 import EnsembleScheduling
from tpuserve_formats.messages.model_server_config import (
    BATCHING_PARAMETERS,
    ENSEMBLE_SCHEDULING,
    RESPONSE_CACHE,
    ModelServerConfig,
    configuration_sha256,
)
from tpuserve_formats.messages.official import (
    MODEL_TYPE,
    FileSystemStoragePathSourceConfig,
    ReloadConfigRequest,
    ReloadConfigResponse,
    StatusProto,
)
from tpuserve_formats.messages.official import LoggingConfig as LoggingConfigProto
from tpuserve_formats.messages.official import ModelConfig as ModelConfigProto
from tpuserve_formats.messages.official import ModelServerConfig as ModelServerConfigProto
from tpuserve_server.core.batching.parameters import (
    DEFAULT_MAX_BATCH_SIZE,
    BatchingMode,
    BatchingParameters,
    PaddingPolicy,
)
from tpuserve_server.core.models.model_config import TENSORFLOW_PLATFORM, LoggingConfig, ModelConfig, VersionPolicy
from tpuserve_server.core.terms.ensemble import Connections, Ensemble, EnsembleStep
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.options import LoadPolicy
from tpuserve_server.core.terms.types import ModelSpec

_log = logging.getLogger(__name__)


# The response has no metrics: requests name TensorFlow's metrics, which this server does not have.
RELOADED: bytes = ReloadConfigResponse(status=StatusProto()).SerializeToString()


def decode_reload_request(body: bytes) -> tuple[tuple[ModelConfig, ...], str]:
    """Return the requested models and the hash of their configuration.

    Raises InvalidArgument, as upstream does, unless the request is a list of models.
    """
    try:
        config = extended(ReloadConfigRequest.FromString(body).config)
    except DecodeError:
        raise InvalidArgument("Malformed ReloadConfigRequest") from None
    return model_configs(config), configuration_sha256(config)


def extended(config: ModelServerConfigProto) -> ModelServerConfigProto:
    """Convert upstream's message to tpuserve's, which also reads tpuserve's own fields. Raises DecodeError."""
    return ModelServerConfig.FromString(config.SerializeToString())


def model_configs(config: ModelServerConfigProto) -> tuple[ModelConfig, ...]:
    """Convert the models of `config`, tpuserve's message, in its order. Check each model separately.

    Raises:
        InvalidArgument: `config` is not a list of models, or a model has no platform, two, or an unsupported one. The
            messages are upstream's (model_servers/model_service_impl.cc, server_core.cc). Also raised if a model's
            batching parameters, response cache or a version of an ensemble's step are invalid.
    """
    if config.WhichOneof("config") != "model_config_list":
        raise InvalidArgument(
            "ServerModelConfig type not supported by HandleReloadConfigRequest. "
            "Only ModelConfigList is currently supported"
        )
    return tuple(_model(model) for model in config.model_config_list.config)


def _model(model: ModelConfigProto) -> ModelConfig:
    return ModelConfig(
        name=model.name,
        base_path=model.base_path,
        platform=_platform(model),
        version_policy=_policy(model.model_version_policy),
        version_labels=dict(model.version_labels),
        logging=_logging(model.logging_config) if model.HasField("logging_config") else None,
        batching=_batching(model) if model.HasField(BATCHING_PARAMETERS) else None,
        response_cache_max_bytes=_cache_bytes(model) if model.HasField(RESPONSE_CACHE) else None,
        ensemble=_ensemble(model) if model.HasField(ENSEMBLE_SCHEDULING) else None,
        load_policy=_load_policy(model) if model.load_policy else None,
    )


def _batching(model: ModelConfigProto) -> BatchingParameters:
    try:
        return batching_parameters(model.batching_parameters)
    except InvalidArgument as error:
        raise InvalidArgument(f"Model {model.name}: {error.message}.") from None


def _cache_bytes(model: ModelConfigProto) -> int:
    cache = model.response_cache
    if not cache.HasField("max_bytes"):
        raise InvalidArgument(f"Model {model.name}: response_cache needs max_bytes; 0 turns the cache off.")
    if cache.max_bytes < 0:
        raise InvalidArgument(
            f"Model {model.name}: response_cache.max_bytes must be at least 0; was {cache.max_bytes}."
        )
    return int(cache.max_bytes)


def _load_policy(model: ModelConfigProto) -> LoadPolicy:
    try:
        return LoadPolicy(model.load_policy)
    except ValueError:
        expected = " or ".join(f"'{policy}'" for policy in LoadPolicy)
        raise InvalidArgument(
            f"Model {model.name}: load_policy must be {expected}; was '{model.load_policy}'."
        ) from None


def _ensemble(model: ModelConfigProto) -> Ensemble:
    try:
        return ensemble(model.ensemble_scheduling)
    except InvalidArgument as error:
        raise InvalidArgument(f"Ensemble {model.name}: {error.message}") from None


def _platform(model: ModelConfigProto) -> str:
    if not model.model_type:
        if not model.model_platform:
            raise InvalidArgument(
                "Illegal setting neither ModelServerConfig::model_type (deprecated) nor "
                f"ModelServerConfig::model_platform, model name is {model.name}"
            )
        return str(model.model_platform)
    if model.model_platform:
        raise InvalidArgument(
            "Illegal setting both ModelServerConfig::model_type (deprecated) and ModelServerConfig::model_platform, "
            f"model name is {model.name}"
        )
    if model.model_type != MODEL_TYPE.values_by_name["TENSORFLOW"].number:
        raise InvalidArgument(f"ModelServerConfig::model_type choice {model.model_type} not supported.")
    _log.warning("Deprecated ModelServerConfig::model_type field used. Prefer ModelServerConfig::model_platform.")
    return TENSORFLOW_PLATFORM


def _policy(policy: FileSystemStoragePathSourceConfig.ServableVersionPolicy) -> VersionPolicy:
    match policy.WhichOneof("policy_choice"):
        case "all":
            return VersionPolicy.all()
        case "specific":
            return VersionPolicy.specific(list(policy.specific.versions))
        case _:
            return VersionPolicy.latest(policy.latest.num_versions)


def _logging(config: LoggingConfigProto) -> LoggingConfig:
    return LoggingConfig(
        type=config.log_collector_config.type,
        filename_prefix=config.log_collector_config.filename_prefix,
        sampling_rate=config.sampling_config.sampling_rate,
    )


# Triton's number for the latest version.
_LATEST = -1


def ensemble(message: EnsembleScheduling) -> Ensemble:
    """Convert `message`, an EnsembleScheduling of any descriptor pool.

    Raises:
        InvalidArgument: a step has a negative version other than -1.
    """
    steps = tuple(_step(number, step) for number, step in enumerate(message.step, start=1))
    return Ensemble(steps, tuple(message.input), tuple(message.output))


def _step(number: int, step: EnsembleScheduling.Step) -> EnsembleStep:
    version = step.model_version if step.HasField("model_version") else _LATEST
    if version < _LATEST:
        raise InvalidArgument(f"step {number} ({step.model_name}) has model_version {version}. The latest is -1")
    model = ModelSpec(
        step.model_name,
        version if version != _LATEST else None,
        step.version_label or None,
        step.signature_name,
    )
    return EnsembleStep(number, model, _connections(step.input_map), _connections(step.output_map))


def _connections(entries: Iterable[EnsembleScheduling.Connection]) -> Connections:
    return tuple((entry.key, entry.value) for entry in entries)


# The core omits the other fields: names of thread pools, and settings of TensorFlow Serving's internals.
_BATCHING_FIELDS = frozenset(field.name for field in dataclasses.fields(BatchingParameters))
_BATCHING_ENUMS: dict[str, type[enum.StrEnum]] = {"batching_mode": BatchingMode, "batch_padding_policy": PaddingPolicy}
_Choice = TypeVar("_Choice", bound=enum.StrEnum)


def batching_parameters(message: Message) -> BatchingParameters:
    """Convert `message`, a BatchingParameters of any descriptor pool.

    Raises:
        InvalidArgument: a value is invalid, or the values contradict each other.
    """
    fields = {
        field.name: _value(field, value) for field, value in message.ListFields() if field.name in _BATCHING_FIELDS
    }
    if "allowed_batch_sizes" in fields:
        # Upstream's default, which the last of the sizes must then equal.
        fields.setdefault("max_batch_size", DEFAULT_MAX_BATCH_SIZE)
    return BatchingParameters(**fields)


def _value(field: FieldDescriptor, value: Any) -> Any:  # noqa: ANN401 (as wide as the message)
    if field.is_repeated:
        return tuple(value)
    if field.message_type is not None:
        # TensorFlow Serving wraps each number in a message { value: … }.
        return value.value
    return _choice(field, _BATCHING_ENUMS[field.name], value) if field.enum_type is not None else value


def _choice(field: FieldDescriptor, kind: type[_Choice], number: int) -> _Choice:
    """Return the enum member for `number`. Enums are open, so a number without a name can arrive."""
    assert field.enum_type is not None
    value = field.enum_type.values_by_number.get(number)
    if value is None:
        raise InvalidArgument(f"{field.name} must be one of {', '.join(each.name for each in kind)}; was {number}")
    return kind[value.name]
