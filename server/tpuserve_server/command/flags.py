"""TensorFlow Serving's flags without a use in this server. This server's flags are in `command/settings.py`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UnneededFlag:
    """TensorFlow Serving's flag without effect here. The command accepts it, and prints an alternative."""

    name: str
    type: type[bool] | type[int] | type[float] | type[str]
    instead: str
    # The value that this server always has. The command prints no line for it.
    fixed_value: bool | None = None
    # Whether the command fails with the same line, because the server must not run without the flag's effect.
    refused: bool = False


UNNEEDED = (
    UnneededFlag(
        "rest_api_num_threads", int, "One event loop handles all REST requests; the server has no thread pool."
    ),
    UnneededFlag("grpc_max_threads", int, "One event loop handles all gRPC calls; the server has no thread pool."),
    UnneededFlag("enable_grpc_healthcheck_service", bool, "The server always serves grpc.health.v1.", fixed_value=True),
    UnneededFlag("use_alts_credentials", bool, "Use --ssl_config_file.", fixed_value=False, refused=True),
    UnneededFlag("num_unload_threads", int, "The server unloads a version when its last request has finished."),
    UnneededFlag("flush_filesystem_caches", bool, "The server does not flush the kernel's file cache."),
    UnneededFlag(
        "platform_config_file",
        str,
        "Use --batching_parameters_file, --tensorflow_session_config_file and --saved_model_tags.",
    ),
    UnneededFlag("per_process_gpu_memory_fraction", float, "TensorFlow runs models on the CPU only."),
    UnneededFlag("thread_pool_factory_config_file", str, "Use --tensorflow_intra_op_parallelism."),
    UnneededFlag(
        "remove_unused_fields_from_bundle_metagraph",
        bool,
        "The server always releases a graph after loading it.",
        fixed_value=True,
    ),
    UnneededFlag(
        "xla_cpu_compilation_enabled", bool, "XLA always compiles the functions that request it.", fixed_value=True
    ),
    UnneededFlag("xla_gpu_compilation_enabled", bool, "TensorFlow runs models on the CPU only.", fixed_value=False),
    UnneededFlag(
        "num_tflite_interpreters_per_pool", int, "One interpreter runs a whole batch. Use --num_tflite_pools."
    ),
    UnneededFlag("skip_initialize_tpu", bool, "TensorFlow never initializes a TPU in this server.", fixed_value=True),
)
