"""Settings of `tpuserve serve`: validated once, from flags over environment, and handed down in small pieces."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from tpuserve_server.command.logs import LogFormat
from tpuserve_server.core.batching.options import BatchingMode, PaddingPolicy
from tpuserve_server.core.batching.parameters import BatchingParameters
from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.mesh_shape import MeshShape

HostBackend: TypeAlias = Literal["envoy", "python", "auto"]

# How the supervisor of the Envoy host hands what it decided to the process that serves.
SETTINGS_VARIABLE = "TPUSERVE_EMBEDDED_SETTINGS"
HOST_NOTE_VARIABLE = "TPUSERVE_EMBEDDED_HOST_NOTE"


def _none_if_empty(value: Any) -> Any:  # noqa: ANN401 - whatever comes, pydantic judges it
    """`--batching_parameters_file=` is how scripts leave a flag of TensorFlow Serving's unset."""
    return None if value == "" else value


def _comma_separated(value: Any) -> Any:  # noqa: ANN401 - as above
    return tuple(filter(None, value.split(","))) if isinstance(value, str) else value


def _channel_arguments(value: Any) -> Any:  # noqa: ANN401 - as above
    """Numbers become int, the rest stays text, as TensorFlow Serving hands them to gRPC."""
    if not isinstance(value, str):
        return value
    return tuple(_channel_argument(part) for part in value.split(",") if part)


def _channel_argument(text: str) -> tuple[str, int | str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ValueError(f"expected name=value,name=value,…, got {text!r}")
    try:
        return key, int(value)
    except ValueError:
        return key, value


def _mesh(value: Any) -> Any:  # noqa: ANN401 - as above
    """`data=2,model=4`; the empty text is one device."""
    if isinstance(value, str):
        return MeshShape.parse(value) if value else MeshShape()
    return value


FilePath: TypeAlias = Annotated[Path | None, BeforeValidator(_none_if_empty)]
# More than a thread can be told to wait for would end it.
Seconds: TypeAlias = Annotated[float, Field(ge=0, le=1e9)]
ChannelArguments: TypeAlias = Annotated[tuple[tuple[str, int | str], ...], BeforeValidator(_channel_arguments)]


def _complaint(check: Callable[[], None]) -> str:
    try:
        check()
    except ValueError as error:
        return str(error)
    return ""


class Settings(BaseModel):
    """Every setting, named as its flag (TensorFlow Serving's name where it has one)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Listening
    port: int = Field(default=8500, ge=0, le=65535)
    rest_api_port: int = Field(default=8501, ge=0, le=65535)
    grpc_socket_path: FilePath = None
    bind_address: str = "0.0.0.0"
    ports_wait_for_models: bool = False
    host_backend: HostBackend = "auto"
    ssl_config_file: FilePath = None
    grpc_channel_arguments: ChannelArguments = ()
    # As upstream: 0 and less for none.
    rest_api_timeout_in_ms: int = 30000
    rest_api_enable_cors_support: bool = False
    max_request_bytes: int = Field(default=64 * 2**20, ge=1, lt=2**31)

    # Models
    model_name: str = Field(default="default", min_length=1)
    # A folder, absolute, or a URI such as gs://bucket/models/m. Not looked at where there is a model_config_file.
    model_base_path: Annotated[str | None, BeforeValidator(_none_if_empty)] = None
    model_config_file: FilePath = None
    model_config_file_poll_wait_seconds: Seconds = 0.0
    file_system_poll_wait_seconds: Seconds = 1.0
    allow_version_labels_for_unavailable_models: bool = False
    max_num_load_retries: int = Field(default=5, ge=0)
    # Negative: none.
    load_retry_interval_micros: int = 60_000_000
    num_load_threads: int = Field(default=1, ge=0)
    saved_model_tags: Annotated[tuple[str, ...], BeforeValidator(_comma_separated)] = ("serve",)
    prefer_tflite_model: bool = False
    # Unset: tpuserve/ in the user's folder of caches.
    storage_cache_dir: FilePath = None
    storage_cache_max_bytes: int = Field(default=64 * 2**30, ge=0)

    # Batching
    enable_batching: bool | None = None
    batching_parameters_file: FilePath = None
    enable_per_model_batching_parameters: bool = False
    max_batch_size: int | None = Field(default=None, ge=1)
    allowed_batch_sizes: tuple[int, ...] = ()
    max_enqueued_batches: int | None = Field(default=None, ge=1)
    low_priority_max_enqueued_batches: int | None = None
    num_batch_threads: int | None = None
    batching_mode: BatchingMode | None = None
    batch_timeout_micros: int | None = None
    latency_objective_ms: float | None = None
    latency_percentile: float | None = None
    batch_padding_policy: PaddingPolicy | None = None
    sequence_buckets: tuple[int, ...] = ()
    scheduling_weight: float | None = None
    device_slots: int = Field(default=0, ge=0)

    # Devices
    device: Literal["auto", "tpu", "gpu", "cpu"] = "auto"
    mesh: Annotated[MeshShape, BeforeValidator(_mesh)] = MeshShape()
    # Unset: tpuserve-compiled/ in the user's folder of caches.
    compilation_cache_dir: FilePath = None

    # Runtime
    tensorflow_session_parallelism: int = Field(default=0, ge=0)
    tensorflow_intra_op_parallelism: int = Field(default=0, ge=0)
    tensorflow_inter_op_parallelism: int = Field(default=0, ge=0)
    tensorflow_session_config_file: FilePath = None
    mixed_precision: Literal["", "bfloat16"] = ""
    bfloat16_kernels: bool = True
    # 0: as many as cores.
    num_tflite_pools: int = Field(default=0, ge=0)
    enable_signature_method_name_check: bool = False
    enable_serialization_as_tensor_content: bool = False

    # Operations
    enable_model_warmup: bool = True
    num_request_iterations_for_warmup: int = Field(default=0, ge=0)
    monitoring_config_file: FilePath = None
    enable_profiler: bool = True
    log_format: LogFormat = "text"
    request_log_path_prefix: Annotated[str | None, BeforeValidator(_none_if_empty)] = None
    request_log_sampling_rate: float = Field(default=1.0, ge=0, le=1)
    request_log_format: Literal["jsonl", "tfrecord"] = "jsonl"
    request_log_max_bytes: int = Field(default=64 * 2**20, ge=1)
    request_log_max_files: int = Field(default=16, ge=1)
    drain_delay_seconds: Seconds = 0.0
    drain_timeout_seconds: Seconds = 30.0

    @property
    def batching_flags(self) -> BatchingParameters:
        """What the flags say of batching. Raises InvalidArgument when it does not fit together."""
        return BatchingParameters(
            max_batch_size=self.max_batch_size,
            allowed_batch_sizes=self.allowed_batch_sizes,
            max_enqueued_batches=self.max_enqueued_batches,
            low_priority_max_enqueued_batches=self.low_priority_max_enqueued_batches,
            num_batch_threads=self.num_batch_threads,
            batching_mode=self.batching_mode,
            batch_timeout_micros=self.batch_timeout_micros,
            latency_objective_ms=self.latency_objective_ms,
            latency_percentile=self.latency_percentile,
            batch_padding_policy=self.batch_padding_policy,
            sequence_buckets=self.sequence_buckets,
            scheduling_weight=self.scheduling_weight,
        )

    @model_validator(mode="after")
    def _check_together(self) -> "Settings":
        checks = (self._check_addresses, self._check_models, self._check_batching, self._check_threads)
        if wrong := [problem for check in checks if (problem := _complaint(check))]:
            raise ValueError("\n".join(wrong))
        return self

    def _check_addresses(self) -> None:
        if self.port == 0 and self.rest_api_port == 0 and self.grpc_socket_path is None:
            raise ValueError("nothing to listen on: port and rest_api_port are both 0 and there is no grpc_socket_path")
        if self.port and self.port == self.rest_api_port:
            raise ValueError(f"port and rest_api_port are both {self.port}; they must differ")

    def _check_models(self) -> None:
        if self.model_base_path is None and self.model_config_file is None:
            raise ValueError(
                "no model to serve: give --model_base_path=FOLDER (the folder that holds version folders such as 1/), "
                "--model_config_file=FILE, or set MODEL_BASE_PATH and MODEL_NAME"
            )

    def _check_batching(self) -> None:
        if self.batching_parameters_file is not None and not self.enable_batching:
            # TensorFlow Serving's rule and words.
            raise ValueError(
                "batching_parameters_file is set without setting enable_batching to true: add --enable_batching"
            )
        try:
            _ = self.batching_flags
        except InvalidArgument as error:
            raise ValueError(error.message) from None

    def _check_threads(self) -> None:
        each = self.tensorflow_intra_op_parallelism and self.tensorflow_inter_op_parallelism
        if each and self.tensorflow_session_parallelism:
            # As above.
            raise ValueError(
                "either configure tensorflow_session_parallelism or (tensorflow_intra_op_parallelism, "
                "tensorflow_inter_op_parallelism) separately; you cannot configure all"
            )
