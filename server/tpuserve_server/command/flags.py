"""The flags of `tpuserve serve` by section, in the order of `--help`. Types and defaults are those of Settings."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag that sets the field of Settings with its name."""

    name: str
    help: str
    # How the default is shown where the field's own would say nothing.
    shown_default: str | None = None
    # Read from the environment under these names, too.
    variables: tuple[str, ...] = ()


SECTIONS: dict[str, tuple[Flag, ...]] = {
    "Listening": (
        Flag("port", "Port of gRPC; 0 for none."),
        Flag("rest_api_port", "Port of REST; 0 for none."),
        Flag("grpc_socket_path", "UNIX socket of gRPC, beside the port."),
        Flag("bind_address", "Address that both ports are bound to."),
        Flag(
            "ports_wait_for_models",
            "Open ports and UNIX socket once every model has loaded or failed, as TensorFlow Serving does. false: at "
            "once.",
        ),
        Flag("host_backend", "Who speaks HTTP: Envoy, grpcio with uvicorn, or Envoy where it runs."),
        Flag("ssl_config_file", "TLS for gRPC and REST: a file with an SSLConfig."),
        Flag("grpc_channel_arguments", "Settings of gRPC's server, such as grpc.max_connection_age_ms=2000."),
        Flag("rest_api_timeout_in_ms", "Longest time for a REST request; 0 for any."),
        Flag("rest_api_enable_cors_support", "Let pages of other origins call REST."),
        Flag("max_request_bytes", "Largest gRPC message or REST body."),
    ),
    "Models": (
        Flag("model_name", "Name that requests use.", variables=("MODEL_NAME",)),
        Flag(
            "model_base_path",
            "Folder of version folders, or its URI. Without it MODEL_BASE_PATH/MODEL_NAME, as in TensorFlow Serving's "
            "image.",
        ),
        Flag(
            "model_config_file",
            "Models from a file with a ModelServerConfig; model_name and model_base_path are not looked at then.",
        ),
        Flag("model_config_file_poll_wait_seconds", "Between looks for changes of that file; 0 reads it once."),
        Flag("file_system_poll_wait_seconds", "Between looks for new versions; 0 looks once."),
        Flag(
            "allow_version_labels_for_unavailable_models",
            "Take a label for a version that is not available yet, where the label is not in use.",
        ),
        Flag("max_num_load_retries", "Tries after the first failure to load a version."),
        Flag("load_retry_interval_micros", "Microseconds between tries to load a version; negative for none."),
        Flag("num_load_threads", "Models loaded at the same time."),
        Flag("saved_model_tags", "Tags of the graph to load from a SavedModel, with commas."),
        Flag("prefer_tflite_model", "Load model.tflite where a version has one."),
        Flag(
            "storage_cache_dir",
            "Where versions from object stores are copied to.",
            shown_default="tpuserve in $XDG_CACHE_HOME or ~/.cache",
        ),
        Flag("storage_cache_max_bytes", "Most bytes of those copies; what is not loaded makes way."),
    ),
    "Batching": (
        Flag(
            "enable_batching",
            "Unset: batch what the exporter has checked. true: whatever has a free first dimension.",
        ),
        Flag("batching_parameters_file", "A file with BatchingParameters; needs enable_batching."),
        Flag("enable_per_model_batching_parameters", "Read batching_params.pbtxt from each version's folder."),
        Flag("max_batch_size", "Most rows in a batch.", shown_default="the manifest's, else 1000"),
        Flag(
            "allowed_batch_sizes",
            "Batches are padded up to one of these; the last must be max_batch_size.",
            shown_default="the manifest's",
        ),
        Flag("max_enqueued_batches", "Batches that may wait; more are refused.", shown_default="512"),
        Flag(
            "low_priority_max_enqueued_batches",
            "As max_enqueued_batches, for requests of low priority.",
            shown_default="max_enqueued_batches",
        ),
        Flag("num_batch_threads", "Batches of a version that run at the same time.", shown_default="1"),
        Flag(
            "batching_mode",
            "When a batch leaves: as soon as the device is free, after a timeout, or as an objective allows.",
            shown_default="what the next two say, else greedy",
        ),
        Flag("batch_timeout_micros", "Mode timeout: how long a batch that is not full waits.", shown_default="0"),
        Flag("latency_objective_ms", "Mode objective: milliseconds within which requests are answered, or refused."),
        Flag("latency_percentile", "Mode objective: percentage of requests it must hold for.", shown_default="99"),
        Flag(
            "batch_padding_policy",
            "Batches are padded up, cut down to a size they fill, or whichever costs less per row.",
            shown_default="min_cost",
        ),
        Flag("sequence_buckets", "Lengths that inputs of variable length are padded to."),
        Flag(
            "scheduling_weight", "A model's share of a device that others use, relative to theirs.", shown_default="1"
        ),
        Flag(
            "device_slots",
            "Batches of all models together that run at the same time; 0: no limit while all weights are alike, else "
            "as many as cores.",
        ),
    ),
    "Devices": (
        Flag(
            "device",
            "Where versions with device programs run. auto: on a TPU or GPU if there is one, else by TensorFlow on the "
            "CPU. tpu, gpu: there, or not at all. cpu: their programs on the CPU.",
        ),
        Flag(
            "mesh",
            "Devices of a version: data=N,model=M splits a batch's rows over N, and weights by its rules over M.",
            shown_default="one device",
        ),
        Flag(
            "compilation_cache_dir",
            "Where compiled device programs are kept for the next start.",
            shown_default="tpuserve-compiled in $XDG_CACHE_HOME or ~/.cache",
        ),
    ),
    "Runtime": (
        Flag("tensorflow_session_parallelism", "Threads of a session: the two below in one; 0: theirs."),
        Flag("tensorflow_intra_op_parallelism", "Threads of one operation; 0: as many as cores."),
        Flag(
            "tensorflow_inter_op_parallelism",
            "Operations at the same time; 0: one after the other, in the batch's thread.",
        ),
        Flag("tensorflow_session_config_file", "A file with TensorFlow's ConfigProto; the flags above go over it."),
        Flag("mixed_precision", "bfloat16: TensorFlow's automatic mixed precision for every model, checked or not."),
        Flag("bfloat16_kernels", "Use the CPU's bfloat16 kernels where the exporter allows it and the CPU has them."),
        Flag("num_tflite_pools", "Runs of a TensorFlow Lite model at the same time; 0: as many as cores."),
        Flag("enable_signature_method_name_check", "Check a signature's method_name in Classify and Regress."),
        Flag("enable_serialization_as_tensor_content", "Answer gRPC Predict with tensor_content, not typed fields."),
    ),
    "Operations": (
        Flag("enable_model_warmup", "Run recorded requests and every batch size before a version is available."),
        Flag("num_request_iterations_for_warmup", "Times that each recorded request is run; 0: once."),
        Flag("monitoring_config_file", "A file with a MonitoringConfig: where Prometheus finds the metrics."),
        Flag("enable_profiler", "Answer TensorBoard's profiler on gRPC's port."),
        Flag("log_format", "The server's own log: lines for people, or JSON.", variables=("TPUSERVE_LOG_FORMAT",)),
        Flag("request_log_path_prefix", "Log requests and their answers to files PREFIX-MODEL-….", "none"),
        Flag("request_log_sampling_rate", "Share of the requests that is logged."),
        Flag("request_log_format", "JSON lines, or TFRecord: both of PredictionLog."),
        Flag("request_log_max_bytes", "Size at which a model's next log file is begun."),
        Flag("request_log_max_files", "Log files kept for each model."),
        Flag("drain_delay_seconds", "After SIGTERM: say not ready this long before closing."),
        Flag("drain_timeout_seconds", "Longest wait for requests in flight at the end."),
    ),
}


@dataclass(frozen=True, slots=True)
class UnneededFlag:
    """A flag of TensorFlow Serving's that changes nothing here: taken, with a line that says what to use instead."""

    name: str
    type: type[bool] | type[int] | type[float] | type[str]
    instead: str
    # The value that is so here anyway: no line for it.
    so_already: bool | None = None
    # Going on without it would be wrong: an error, with the same line.
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
