"""Settings of `tpuserve serve`: validated once, from flags over environment, and handed down in small pieces."""

from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tpuserve_server.core.batching_options import BatchingOptions
from tpuserve_server.core.errors import InvalidArgument

HostBackend: TypeAlias = Literal["envoy", "python", "auto"]

# How the supervisor of the Envoy host hands what it decided to the process that serves.
SETTINGS_VARIABLE = "TPUSERVE_EMBEDDED_SETTINGS"
HOST_NOTE_VARIABLE = "TPUSERVE_EMBEDDED_HOST_NOTE"


class Settings(BaseModel):
    """Every setting, named as its flag (TensorFlow Serving's name where it has one)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    port: int = Field(default=8500, ge=0, le=65535)
    rest_api_port: int = Field(default=8501, ge=0, le=65535)
    grpc_socket_path: Path | None = None
    bind_address: str = "0.0.0.0"
    host_backend: HostBackend = "auto"

    model_name: str = Field(default="default", min_length=1)
    model_base_path: Path
    file_system_poll_wait_seconds: float = Field(default=1.0, ge=0)
    num_load_threads: int = Field(default=1, ge=1)
    enable_model_warmup: bool = True

    enable_batching: bool | None = None
    max_batch_size: int | None = Field(default=None, ge=1)
    allowed_batch_sizes: tuple[int, ...] = ()
    max_enqueued_batches: int = Field(default=512, ge=1)

    tensorflow_intra_op_parallelism: int = Field(default=0, ge=0)
    tensorflow_inter_op_parallelism: int = Field(default=0, ge=0)
    bfloat16_kernels: bool = True

    rest_api_timeout_in_ms: int = Field(default=30000, ge=1)
    max_request_bytes: int = Field(default=64 * 2**20, ge=1, lt=2**31)
    drain_delay_seconds: float = Field(default=0.0, ge=0)
    drain_timeout_seconds: float = Field(default=30.0, ge=0)

    @model_validator(mode="after")
    def _check_together(self) -> "Settings":
        if self.port == 0 and self.rest_api_port == 0 and self.grpc_socket_path is None:
            raise ValueError("nothing to listen on: port and rest_api_port are both 0 and there is no grpc_socket_path")
        if self.port and self.port == self.rest_api_port:
            raise ValueError(f"port and rest_api_port are both {self.port}; they must differ")
        if self.allowed_batch_sizes:
            try:
                BatchingOptions(self.max_batch_size or self.allowed_batch_sizes[-1], self.allowed_batch_sizes)
            except InvalidArgument as error:
                raise ValueError(error.message) from None
        return self
