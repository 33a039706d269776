"""Lines of `--help` for the flags that the core declares, because the core holds no help texts, and the short help.

Flags of other rooms have their line in their `Setting`.
"""

from collections.abc import Mapping
from typing import Final

# Flags that `--help` shows without a level, by section. The others are for special needs.
COMMON_FLAGS: Final = (
    "model_name model_base_path model_config_file file_system_poll_wait_seconds load_policy "
    "port rest_api_port bind_address ssl_config_file tls_cert_file tls_key_file tls_client_ca_file max_request_bytes "
    "enable_batching max_batch_size allowed_batch_sizes latency_objective_ms batching_parameters_file "
    "device "
    "log_format access_log request_log_path_prefix trace_endpoint max_requests_per_second drain_timeout_seconds "
    "enable_console "
    "credentials_file"
)

# By name of the flag. The short help shows the first sentence.
HELP: Final[Mapping[str, str]] = {
    "max_batch_size": "Maximum number of rows in a batch.",
    "allowed_batch_sizes": "Sizes that batches are padded to, ascending; the last must be max_batch_size.",
    "max_enqueued_batches": "Maximum number of batches in the queue; the server refuses more.",
    "low_priority_max_enqueued_batches": "The same limit as max_enqueued_batches, for requests of low priority.",
    "num_batch_threads": "Maximum number of batches of a version that run at the same time.",
    "batching_mode": (
        "Rule by which a batch leaves the queue: as soon as the device is free, after a timeout, or by an objective."
    ),
    "batch_timeout_micros": "Mode timeout: longest wait of a batch that is not full.",
    "latency_objective_ms": (
        "Mode objective: latency objective in milliseconds; the server refuses requests that would miss it."
    ),
    "latency_percentile": "Mode objective: percentage of requests that must meet the objective.",
    "batch_padding_policy": (
        "Pad a batch up to the next size, cut it down to a size that it fills, or do what costs less per row."
    ),
    "sequence_buckets": "Lengths that inputs of variable length are padded to.",
    "scheduling_weight": "Weight of a model's share of a device, relative to the other models.",
    "max_decoded_bytes": (
        "Maximum memory for the decoded values, lists, objects and dimensions of one request; 0: 4 times "
        "max_request_bytes."
    ),
    "max_receiving_bytes": (
        "Maximum memory for the requests that are still arriving, all together; 0: 16 times max_request_bytes."
    ),
    "max_connection_receiving_bytes": (
        "Maximum memory for the requests that are still arriving on one connection; 0: 4 times max_request_bytes."
    ),
    "max_response_bytes": "Maximum size of a response, which is known before it is encoded.",
    "max_sending_bytes": (
        "Maximum memory for the responses that clients have not read, all together; 0: 16 times max_request_bytes, "
        "at least twice max_response_bytes."
    ),
    "max_connection_sending_bytes": (
        "Maximum memory for the responses that a client has not read on one connection; 0: 4 times "
        "max_request_bytes, at least max_response_bytes."
    ),
    "max_num_load_retries": "Maximum number of retries to load a version after an error that may pass.",
    "load_retry_interval_micros": (
        "Pause between attempts to load a version, in microseconds; a negative value is no pause."
    ),
    "num_load_threads": "Number of versions to load at the same time.",
    "load_timeout_seconds": "Time after which the server gives up a load, in seconds; 0: no limit.",
    "reload_roots": "Directories and URIs, such as gs://bucket/models, in which reload requests may name base paths.",
    "reload_log_roots": "Directories in which reload requests may name prefixes of request logs.",
    "load_policy": (
        "Whether versions load at once, or on demand at the first request of a model. A model's configuration "
        "overrides it."
    ),
    "idle_unload_seconds": "Time after its last request when a model that loads on demand unloads. 0: never.",
    "model_memory_bytes": (
        "Memory of all loaded versions above which the least recently used models that load on demand unload. 0: no "
        "limit."
    ),
    "response_cache_max_bytes": (
        "Maximum memory for the responses that the server keeps of each model, to answer equal requests without a "
        "run; 0 keeps none. response_cache in a model's configuration overrides it."
    ),
    "run_timeout_seconds": "Time after which a run of a model on its device counts as hung, in seconds; 0: never.",
    "replace_hung_after_seconds": (
        "Time that a hung run has left to end, in seconds; the server then drains and starts a new process. 0: never."
    ),
}

# Defaults in words, where the value alone is not clear.
SHOWN_DEFAULTS: Final[Mapping[str, str]] = {
    "max_batch_size": "the manifest's, else 1000",
    "allowed_batch_sizes": "the manifest's",
    "max_enqueued_batches": "512",
    "low_priority_max_enqueued_batches": "max_enqueued_batches",
    "num_batch_threads": "1",
    "batching_mode": "implied by the next two, else greedy",
    "batch_timeout_micros": "0",
    "latency_percentile": "99",
    "batch_padding_policy": "min_cost",
    "scheduling_weight": "1",
    "reload_roots": "the parents of the base paths at the start, and MODEL_BASE_PATH",
    "reload_log_roots": "those of the request logs at the start",
}
