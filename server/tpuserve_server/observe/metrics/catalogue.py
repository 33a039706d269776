"""Catalogue: the metrics with a name of this server, and the meanings of labels. The reference page is made of it.

Names and labels are public API.
"""

from collections.abc import Mapping
from typing import Final

from tpuserve_server.observe.metrics.families import Family
from tpuserve_server.observe.metrics.histogram import LATENCY_BOUNDS_S, MILLISECOND_S

_VERSION: Final = ("model_name", "version")
_SIGNATURE: Final = (*_VERSION, "signature")
_REQUEST: Final = (*_SIGNATURE, "method", "protocol", "code")
_LENGTHS: Final = (*_SIGNATURE, "lengths")
_STAGE: Final = ("protocol", "model_name", "stage")

REQUESTS: Final = Family("tpuserve_requests_total", "counter", _REQUEST, "Completed requests, by canonical code.")
FAILED: Final = Family(
    "tpuserve_failed_requests_total",
    "counter",
    (*_VERSION, "method", "code", "fault"),
    "Requests that ended with an error, by whose fault it is. server: an error, a missed deadline, a refusal under "
    "overload, or a configured model without a version that serves. client: wrong or cancelled requests, those over a "
    "limit of size, and timeouts shorter than the fastest run of the signature, which no idle server could meet.",
)
REQUEST_LATENCY: Final = Family(
    "tpuserve_request_latency_seconds",
    "histogram",
    _REQUEST,
    "Time from a request's arrival to its response.",
    LATENCY_BOUNDS_S,
    MILLISECOND_S,
)
IN_FLIGHT: Final = Family(
    "tpuserve_requests_in_flight", "gauge", ("protocol",), "Requests that have arrived and are not answered yet."
)
STAGE_SECONDS: Final = Family(
    "tpuserve_request_stage_seconds_total",
    "counter",
    _STAGE,
    "Time that requests spent in a stage, all together. Under load, one request in 127 counts as 127.",
)
STAGE_REQUESTS: Final = Family(
    "tpuserve_request_stage_requests_total",
    "counter",
    ("protocol", "model_name"),
    "Requests in tpuserve_request_stage_seconds_total. The time divided by this number is the mean of a request.",
)
DROPPED: Final = Family(
    "tpuserve_dropped_requests_total",
    "counter",
    (*_VERSION, "reason", "priority"),
    "Requests that did not run. expired, cancelled: they left the queue. queue_full: the limit of waiting "
    "batches was reached. too_late: their predicted finish was after their deadline or the latency objective. "
    "hung: they waited behind a run that hangs.",
)
REFUSED: Final = Family(
    "tpuserve_refused_requests_total",
    "counter",
    ("reason",),
    "Requests refused before their message was read and their model known. too_late: their predicted finish was after "
    "their deadline. impossible_deadline: their timeout was shorter than the fastest run of any signature. rate: they "
    "were over --max_requests_per_second. header_size, message_size: their headers, or their message or body, were "
    "over the limit.",
)

DEMAND_SECONDS: Final = Family(
    "tpuserve_demand_seconds_total",
    "counter",
    ("model_name", "priority"),
    "Device time that the requests that arrived need, admitted or refused for lack of capacity. Each counts with its "
    "share of a batch under full load. A rate of 1 is all that the model's batch threads can do.",
)
MODEL_DEMAND: Final = Family(
    "tpuserve_model_demand_ratio",
    "gauge",
    ("model_name",),
    "Rate of tpuserve_demand_seconds_total over the last 30 seconds. Models on one device delay each other, so their "
    "sum may be above the ratio of the server.",
)
DEMAND: Final = Family(
    "tpuserve_demand_ratio",
    "gauge",
    (),
    "Work that arrived in the last 30 seconds, admitted or refused, divided by what the server can do: the demand of "
    "all models for the device, or the busy time of the event loop, whichever is larger. Above 1 the server refuses or "
    "delays requests. For autoscaling.",
)
LOOP_BUSY: Final = Family(
    "tpuserve_event_loop_busy_seconds_total",
    "counter",
    (),
    "Time in which the thread of the event loop used a CPU or waited for one. At a rate of 1 the event loop limits the "
    "server. Only on Linux.",
)
SERVER_QUEUE: Final = Family(
    "tpuserve_server_queue_requests",
    "gauge",
    (),
    "Requests of all models that wait for a batch to start. For routers that read one series of a server.",
)
QUEUE_REQUESTS: Final = Family(
    "tpuserve_queue_requests",
    "gauge",
    _VERSION,
    "Requests that wait for a batch to start. A request that was split counts once for each waiting part.",
)
QUEUE_ROWS: Final = Family("tpuserve_queue_rows", "gauge", _VERSION, "Rows of the requests that wait.")
QUEUE_WAIT: Final = Family(
    "tpuserve_queue_wait_seconds",
    "histogram",
    _SIGNATURE,
    "Time from a request's arrival to the start of its batch.",
    omit_below=MILLISECOND_S,
)
BATCH_RUN: Final = Family(
    "tpuserve_batch_run_seconds",
    "histogram",
    (*_SIGNATURE, "bucket"),
    "Time of a batch on the device. The label bucket is the number of rows with padding, or the next power of "
    "two for a signature without fixed sizes.",
    omit_below=MILLISECOND_S,
)
BATCH_RUN_RATIO: Final = Family(
    "tpuserve_batch_run_ratio",
    "histogram",
    _SIGNATURE,
    "Time of a batch on the device, divided by the expected time of its size.",
)
BATCH_ROWS: Final = Family("tpuserve_batch_rows", "histogram", _SIGNATURE, "Rows of a batch without padding.")
BATCH_PADDING: Final = Family(
    "tpuserve_batch_padding_ratio",
    "histogram",
    _SIGNATURE,
    "Rows of padding in a batch, divided by its rows with padding: 0 for a full batch, 0.25 for 6 rows in a batch of "
    "8.",
)
UNWARMED: Final = Family(
    "tpuserve_unwarmed_runs_total",
    "counter",
    _SIGNATURE,
    "Runs with shapes or outputs that warm-up did not run. A device that compiles has to compile for each.",
)
UNTRIED: Final = Family(
    "tpuserve_untried_runs_total",
    "counter",
    _SIGNATURE,
    "First runs of shapes with a size outside of the range that the exporter has checked, by the manifest.",
)
REFUSED_RUNS: Final = Family(
    "tpuserve_refused_runs_total",
    "counter",
    _SIGNATURE,
    "Runs that the server refused, because runs with such input shapes ended or hung its process.",
)
HUNG_RUNS: Final = Family(
    "tpuserve_hung_runs_total",
    "counter",
    _VERSION,
    "Runs that took longer than --run_timeout_seconds, so that the server answered their requests with errors.",
)

CACHE_HITS: Final = Family(
    "tpuserve_response_cache_hits_total",
    "counter",
    _VERSION,
    "Requests that the response cache answered without a run.",
)
CACHE_MISSES: Final = Family(
    "tpuserve_response_cache_misses_total", "counter", _VERSION, "Requests that were not in the response cache."
)
CACHE_EVICTIONS: Final = Family(
    "tpuserve_response_cache_evictions_total",
    "counter",
    _VERSION,
    "Responses that the cache dropped for newer ones of any version of the model.",
)
CACHE_BYTES: Final = Family(
    "tpuserve_response_cache_bytes", "gauge", _VERSION, "Memory of the responses of a version in the cache."
)

COST: Final = Family(
    "tpuserve_batch_cost_seconds",
    "gauge",
    (*_LENGTHS, "bucket"),
    "Learned mean time of a batch of this size on the device.",
)
COST_SPREAD: Final = Family(
    "tpuserve_batch_cost_spread_seconds",
    "gauge",
    (*_LENGTHS, "bucket"),
    "Standard deviation of the time of a batch of this size.",
)
COST_BASE: Final = Family(
    "tpuserve_batch_cost_base_seconds",
    "gauge",
    _LENGTHS,
    "Constant part of the time of a batch, by the line fitted through the sizes.",
)
COST_ROW: Final = Family(
    "tpuserve_batch_cost_row_seconds",
    "gauge",
    _LENGTHS,
    "Time that each row adds to a batch, by the line fitted through the sizes.",
)
FINISH_ERROR: Final = Family(
    "tpuserve_finish_error_seconds",
    "histogram",
    _SIGNATURE,
    "With a latency objective: actual finish of a request, minus the finish predicted at its arrival. Above 0, the "
    "request finished later than predicted. Values can be negative, so there is no sum, and the "
    "bucket +Inf is the count.",
)
OBJECTIVE_HOST: Final = Family(
    "tpuserve_objective_host_seconds",
    "gauge",
    _SIGNATURE,
    "Part of a latency objective that is reserved for work outside the batcher, learned from late responses.",
)

VERSION_STATE: Final = Family(
    "tpuserve_version_state",
    "gauge",
    _VERSION,
    "State of a version: 10 START, 20 LOADING, 30 AVAILABLE, 40 UNLOADING, 50 END.",
)
MODEL_AVAILABLE: Final = Family(
    "tpuserve_model_available",
    "gauge",
    ("model_name",),
    "1 if a version of the configured model is AVAILABLE or loads at a request, 0 otherwise: it loads, its files are "
    "missing, or it failed.",
)
VERSION_LOADS: Final = Family(
    "tpuserve_version_loads_total",
    "counter",
    ("model_name", "outcome"),
    "Attempts to load a version of a model, with retries: loaded, failed. Ensembles load no files and do not count.",
)
VERSION_LOAD: Final = Family(
    "tpuserve_version_load_seconds",
    "gauge",
    _VERSION,
    "Duration of a version's load without its warm-up: copy, verification of the hashes, and executor.",
)
WARMUP: Final = Family("tpuserve_warmup_seconds", "gauge", _VERSION, "Duration of a version's warm-up.")
COMPILE: Final = Family(
    "tpuserve_compile_seconds",
    "gauge",
    _VERSION,
    "Time to compile a version's device programs, or to load them from the compilation cache.",
)
VERSION_BUSY: Final = Family(
    "tpuserve_version_busy_seconds_total",
    "counter",
    _VERSION,
    "Time in which batches of the version ran on any device, also on a CPU. Its rate is the duty cycle. With several "
    "batch threads it can exceed 1.",
)
VERSION_DEVICE: Final = Family(
    "tpuserve_version_device",
    "gauge",
    (*_VERSION, "device", "fallback"),
    "1. The labels are the device of the version, and the reason if it is not on a better device.",
)

DEVICE_BUSY: Final = Family(
    "tpuserve_device_busy_seconds_total",
    "counter",
    ("device",),
    "Time in which a device program ran. Its rate is the duty cycle.",
)
DEVICE_MEMORY: Final = Family(
    "tpuserve_device_memory_bytes",
    "gauge",
    ("device", "kind"),
    "Memory in_use, its peak and its limit, if the device reports them.",
)

SERVER_STATE: Final = Family(
    "tpuserve_server_state",
    "gauge",
    ("state",),
    "1 for the state of the server, 0 for the others. starting: not ready since the start. ready, not_ready: as "
    "/readyz. draining: the server stops.",
)
BUILD_INFO: Final = Family("tpuserve_build_info", "gauge", ("version", "python"), "1. The labels are the versions.")
CONFIGURATION_INFO: Final = Family(
    "tpuserve_configuration_info",
    "gauge",
    ("sha256",),
    "1. The label is the hash of the model configuration in force. Absent if flags are the configuration.",
)
HTTP_REQUESTS: Final = Family(
    "tpuserve_http_requests_total",
    "counter",
    ("http_version",),
    "Requests that arrived, refused ones and those for pages included. gRPC needs version 2.",
)
MAX_CONNECTIONS: Final = Family(
    "tpuserve_max_connections",
    "gauge",
    (),
    "Client connections that the server accepts: --max_connections, or less if the process may open fewer files. "
    "process_open_fds counts the open ones, and the files of models.",
)
BUDGET_BYTES: Final = Family(
    "tpuserve_budget_bytes",
    "gauge",
    ("budget", "kind"),
    "Memory budget of requests: bytes in_use and their limit. receiving: all requests that are still arriving. "
    "sending: all responses that clients have not read. decoded and response: the objects and the response of one "
    "request, so they have only a limit.",
)
BUDGET_REFUSALS: Final = Family(
    "tpuserve_budget_refusals_total", "counter", ("budget",), "Requests that were refused or cut by a memory budget."
)
MODEL_MEMORY: Final = Family(
    "tpuserve_model_memory_bytes",
    "gauge",
    ("model_name", "version"),
    "Memory of a loaded version: what its first load allocated, or the size of its files if that is more.",
)
ON_DEMAND_LOADS: Final = Family(
    "tpuserve_on_demand_loads_total", "counter", (), "Loads of models that load on demand, which requests began."
)
ON_DEMAND_UNLOADS: Final = Family(
    "tpuserve_on_demand_unloads_total",
    "counter",
    ("reason",),
    "Models that load on demand and have left. idle: without requests for --idle_unload_seconds. memory: another model "
    "needed the memory.",
)
CUT_RESPONSES: Final = Family(
    "tpuserve_cut_responses_total",
    "counter",
    ("reason",),
    "Responses that were cut or refused because clients did not read them. timeout: no byte was taken for "
    "--write_timeout_seconds. memory: the budget sending was full.",
)
CERTIFICATE_EXPIRY: Final = Family(
    "tpuserve_certificate_expiry_timestamp_seconds",
    "gauge",
    ("certificate",),
    "Time, in seconds since 1970, at which the first TLS certificate expires. server: the server's certificate and its "
    "intermediate certificates. client_ca: the authorities of client certificates. Absent without TLS.",
)
CERTIFICATE_RELOAD_FAILED: Final = Family(
    "tpuserve_certificate_reload_failed",
    "gauge",
    (),
    "1 if the last reload of the TLS certificates failed and the server keeps the ones before, 0 otherwise. Absent "
    "without TLS.",
)
LOG_EVENTS_DROPPED: Final = Family(
    "tpuserve_log_events_dropped_total",
    "counter",
    (),
    "Events of the server's log that were dropped, because the reader of standard error was too slow.",
)

LOG_RECORDS: Final = Family("tpuserve_request_log_records_total", "counter", ("model_name",), "Logged requests.")
LOG_DROPPED: Final = Family(
    "tpuserve_request_log_dropped_total",
    "counter",
    ("model_name", "reason"),
    "Requests selected for the log but not written: queue_full, write_failed.",
)

TRACES_EXPORTED: Final = Family(
    "tpuserve_traces_exported_total", "counter", (), "Requests whose spans the receiver of traces took."
)
TRACES_DROPPED: Final = Family(
    "tpuserve_traces_dropped_total",
    "counter",
    ("reason",),
    "Requests that were chosen for a trace but not exported. rate: the maximum rate was reached. queue_full: too many "
    "waited for the export. export_failed: the receiver did not take them. rejected: it took the others of the same "
    "export; estimated from the number of rejected spans.",
)

OMITTED: Final = Family(
    "tpuserve_metrics_omitted_series",
    "gauge",
    ("metric",),
    "Series of a gauge that the page omits, because the gauge has more than 20000.",
)
FOLDED: Final = Family(
    "tpuserve_metrics_folded_models",
    "gauge",
    ("metric",),
    "Models with series that a metric counts under `other`: those beyond its first 1000 models, and those with more "
    "signatures than it counts apart.",
)
# Names of TensorFlow Serving's metrics that count by model, each with a limit of its own.
UPSTREAM_REQUESTS: Final = ":tensorflow:serving:request_count"
UPSTREAM_EXAMPLES: Final = ":tensorflow:serving:request_example_counts"
UPSTREAM_RUNTIME: Final = ":tensorflow:serving:runtime_latency"

# Metrics by the section of the documentation.
CATALOGUE: Final[Mapping[str, tuple[Family, ...]]] = {
    "Requests": (REQUESTS, FAILED, REQUEST_LATENCY, IN_FLIGHT, STAGE_SECONDS, STAGE_REQUESTS, DROPPED, REFUSED),
    "Demand": (DEMAND, MODEL_DEMAND, DEMAND_SECONDS, LOOP_BUSY),
    "Batches": (
        SERVER_QUEUE,
        QUEUE_REQUESTS,
        QUEUE_ROWS,
        QUEUE_WAIT,
        BATCH_RUN,
        BATCH_RUN_RATIO,
        BATCH_ROWS,
        BATCH_PADDING,
        UNWARMED,
        UNTRIED,
        REFUSED_RUNS,
        HUNG_RUNS,
    ),
    "Response cache": (CACHE_HITS, CACHE_MISSES, CACHE_EVICTIONS, CACHE_BYTES),
    "Batch costs and objectives": (COST, COST_SPREAD, COST_BASE, COST_ROW, FINISH_ERROR, OBJECTIVE_HOST),
    "Versions": (
        VERSION_STATE,
        MODEL_AVAILABLE,
        VERSION_LOADS,
        VERSION_LOAD,
        WARMUP,
        COMPILE,
        VERSION_BUSY,
        VERSION_DEVICE,
        MODEL_MEMORY,
        ON_DEMAND_LOADS,
        ON_DEMAND_UNLOADS,
    ),
    "Devices": (DEVICE_BUSY, DEVICE_MEMORY),
    "Server": (
        SERVER_STATE,
        BUILD_INFO,
        CONFIGURATION_INFO,
        HTTP_REQUESTS,
        MAX_CONNECTIONS,
        BUDGET_BYTES,
        BUDGET_REFUSALS,
        CUT_RESPONSES,
        CERTIFICATE_EXPIRY,
        CERTIFICATE_RELOAD_FAILED,
        LOG_EVENTS_DROPPED,
    ),
    "Request log": (LOG_RECORDS, LOG_DROPPED),
    "Traces": (TRACES_EXPORTED, TRACES_DROPPED),
    "Metrics page": (OMITTED, FOLDED),
}

# Meanings of the label values, by label. `le` of histograms is Prometheus' own.
LABELS: Final[Mapping[str, str]] = {
    "model_name": "name of a configured model; empty for a request that named no configured model; `other` beyond the "
    "limit of series",
    "version": "version number; empty for a request that failed before the server found its version. Of "
    "`tpuserve_build_info`: the server's version",
    "signature": "name of a signature; empty for a request that runs several signatures or none",
    "method": "name of the method in TensorFlow Serving's API or in the Open Inference Protocol, such as Predict",
    "protocol": "grpc, rest",
    "code": "canonical code of gRPC, such as OK or NOT_FOUND, also over REST",
    "stage": "receive, decode, queue, batch (the rows are joined), execute, "
    "resume (back to the event loop), encode; cache for a response from the cache. "
    "[Slow requests](../how-to/operate/slow-requests.md) explains them; restore_graph for a load",
    "fault": "server, client",
    "reason": "why a request was dropped or refused, see the metric",
    "priority": "high, low",
    "bucket": "rows of a batch with padding",
    "lengths": "padded lengths of the sequences of a batch; empty without sequences",
    "outcome": "loaded, failed",
    "device": "cpu, gpu or tpu for a version, and a device such as tpu:0 for memory and busy time",
    "fallback": "reason against a better device; empty on the best one",
    "kind": "in_use, peak, limit",
    "state": "starting, ready, not_ready, draining",
    "python": "version of Python",
    "sha256": "hash of a configuration's content, in hexadecimal",
    "http_version": "1.1, 2",
    "budget": "receiving, sending, decoded, response",
    "certificate": "server, client_ca",
    "metric": "name of a metric",
}
