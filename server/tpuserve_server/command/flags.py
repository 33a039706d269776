"""TensorFlow Serving's flags without a use in this server. This server's flags are in `command/settings.py`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UnneededFlag:
    """TensorFlow Serving's flag without effect here. The command accepts it, and prints an alternative."""

    name: str
    type: type[bool] | type[int] | type[float] | type[str]
    instead: str
    # The value that this server always has. The command prints no line for it.
    so_already: bool | None = None
    # Whether the command fails with the same line, because the server must not run without the flag's effect.
    refused: bool = False


UNNEEDED = (
    UnneededFlag("rest_api_num_threads", int, "One event loop carries every REST call; there is no pool of threads."),
    UnneededFlag("grpc_max_threads", int, "One event loop carries every gRPC call; there is no pool of threads."),
    UnneededFlag("enable_grpc_healthcheck_service", bool, "grpc.health.v1 is always answered.", so_already=True),
    UnneededFlag("use_alts_credentials", bool, "Use --ssl_config_file.", so_already=False, refused=True),
    UnneededFlag("num_unload_threads", int, "A version is unloaded as soon as its last request has left."),
    UnneededFlag("flush_filesystem_caches", bool, "The kernel's file cache is left to the kernel."),
    UnneededFlag(
        "platform_config_file",
        str,
        "Use --batching_parameters_file, --tensorflow_session_config_file and --saved_model_tags.",
    ),
    UnneededFlag("per_process_gpu_memory_fraction", float, "No model runs on a GPU through TensorFlow here."),
    UnneededFlag("thread_pool_factory_config_file", str, "Use --tensorflow_intra_op_parallelism."),
    UnneededFlag(
        "remove_unused_fields_from_bundle_metagraph", bool, "A graph is released once it is loaded.", so_already=True
    ),
    UnneededFlag(
        "xla_cpu_compilation_enabled", bool, "Functions that ask for XLA are always compiled with it.", so_already=True
    ),
    UnneededFlag(
        "xla_gpu_compilation_enabled", bool, "No model runs on a GPU through TensorFlow here.", so_already=False
    ),
    UnneededFlag("num_tflite_interpreters_per_pool", int, "A batch is one run; see --num_tflite_pools."),
    UnneededFlag("skip_initialize_tpu", bool, "TensorFlow never initializes a TPU here.", so_already=True),
)
