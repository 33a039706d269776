"""BatchingParameters on disk: --batching_parameters_file, and batching_params.pbtxt in a version's own folder."""

from pathlib import Path

from tpuserve_server.config._proto import batching_parameters_pb2
from tpuserve_server.config.text_format import ConfigError, parse, read_text
from tpuserve_server.core.batching_options import BatchingMode, PaddingPolicy
from tpuserve_server.core.batching_parameters import DEFAULT_MAX_BATCH_SIZE, NOTHING_SAID, BatchingParameters
from tpuserve_server.core.errors import InvalidArgument

MODEL_FILE = "batching_params.pbtxt"

# TensorFlow Serving's numbers, each a message { value: … }.
_WRAPPED = (
    "max_batch_size",
    "batch_timeout_micros",
    "max_enqueued_batches",
    "num_batch_threads",
    "max_execution_batch_size",
)
_OURS = ("latency_objective_ms", "latency_percentile", "low_priority_max_enqueued_batches", "scheduling_weight")


def read_batching_parameters(path: Path, flags: BatchingParameters = NOTHING_SAID) -> BatchingParameters:
    """What the file at `path` says, and `flags` over it. Blocking.

    Raises:
        ConfigError: It cannot be read, is no BatchingParameters, or says what does not fit together.
    """
    return flags.over(_parse(read_text(path), path))


def read_model_batching_parameters(version_path: Path) -> BatchingParameters | None:
    """What a version says of itself (servables/tensorflow/bundle_factory_util.cc); None for nothing. Blocking.

    Raises:
        InvalidArgument: as ConfigError above; clients may see it, so it names no folder.
    """
    path = version_path / MODEL_FILE
    if not path.exists():
        return None
    try:
        return _parse(path.read_text(encoding="utf-8"), Path(MODEL_FILE))
    except ConfigError as error:
        raise InvalidArgument(str(error)) from None
    except OSError as error:
        raise InvalidArgument(f"{MODEL_FILE} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{MODEL_FILE} cannot be read: not UTF-8 text (byte {error.start})") from None


def _parse(text: str, path: Path) -> BatchingParameters:
    message = parse(text, batching_parameters_pb2.BatchingParameters(), path)
    try:
        return _to_core(message)
    except InvalidArgument as error:
        raise ConfigError(f"{error.message}. Invalid BatchingParameters file: '{path}'") from None


def _to_core(message: batching_parameters_pb2.BatchingParameters) -> BatchingParameters:
    said = {field.name: value for field, value in message.ListFields()}
    numbers = {name: said[name].value for name in _WRAPPED if name in said}
    if message.allowed_batch_sizes:
        # As upstream, for which the last of the sizes must be the default then.
        numbers.setdefault("max_batch_size", DEFAULT_MAX_BATCH_SIZE)
    numbers |= {name: said[name] for name in _OURS if name in said}
    splitting = message.HasField("enable_large_batch_splitting")
    modes, policies = message.BatchingMode, message.PaddingPolicy
    return BatchingParameters(
        **numbers,
        allowed_batch_sizes=tuple(message.allowed_batch_sizes),
        enable_large_batch_splitting=message.enable_large_batch_splitting.value if splitting else None,
        # Not a wrapper: false cannot be told from nothing.
        pad_variable_length_inputs=message.pad_variable_length_inputs or None,
        batching_mode=BatchingMode(modes.Name(said["batching_mode"]).lower()) if "batching_mode" in said else None,
        batch_padding_policy=PaddingPolicy(policies.Name(said["batch_padding_policy"]).lower())
        if "batch_padding_policy" in said
        else None,
        sequence_buckets=tuple(message.sequence_buckets),
    )
