"""Triton's metrics (`nv_inference_*`, `nv_cache_*`): names, labels and units as Triton's page has them.

Without the figures that this server does not measure: `nv_inference_compute_input_duration_us` and
`nv_inference_compute_output_duration_us`, because an executor copies and runs in one call, and `nv_gpu_*` and
`nv_cpu_*` of the whole machine. Source: triton-inference-server/server, docs/user_guide/metrics.md.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from tpuserve_server.core.system.threads import let_others_run
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.observe.metrics.batch_measurements import BatchKey
from tpuserve_server.observe.metrics.exposition import UpstreamLines
from tpuserve_server.observe.metrics.histogram import MICROSECONDS, Histogram
from tpuserve_server.observe.metrics.measurements import Measurements
from tpuserve_server.observe.metrics.series import Series
from tpuserve_server.observe.metrics.upstream import UpstreamFamily

_VERSION: Final = ("model", "version")
_INFERENCE: Final = frozenset({"Predict", "Classify", "Regress", "MultiInference", "ModelInfer", "ModelStreamInfer"})
# Triton's reasons of failures. All other codes are OTHER.
_REASONS: Final[Mapping[Code, str]] = {
    Code.DEADLINE_EXCEEDED: "REJECTED",
    Code.RESOURCE_EXHAUSTED: "REJECTED",
    Code.UNAVAILABLE: "REJECTED",
    Code.CANCELLED: "CANCELED",
    Code.INTERNAL: "BACKEND",
    Code.UNKNOWN: "BACKEND",
}

# Meanings of the label values, by label.
TRITON_LABELS: Final = {"model": "name of a configured model", "reason": "REJECTED, CANCELED, BACKEND, OTHER"}


def _answered(measured: Measurements) -> Iterator[tuple[ServableId, Histogram]]:
    """Yield the latencies in seconds of successful inferences of versions that have not ended."""
    for key, latencies in measured.requests():
        let_others_run()
        if key.code is Code.OK and key.version is not None and key.method in _INFERENCE:
            yield ServableId(key.model, key.version), latencies


def _successes(measured: Measurements, write: UpstreamLines) -> Iterator[str]:
    counts = Counter[ServableId]()
    for servable, latencies in _answered(measured):
        counts[servable] += latencies.total()
    return _of_versions(write, counts)


def _failures(measured: Measurements, write: UpstreamLines) -> Iterator[str]:
    counts = Counter[tuple[str, str, str]]()
    for (model, version, method, code, _), count in measured.failed.all().items():
        if model and method in _INFERENCE:
            number = "" if version is None else str(version)
            counts[model, number, _REASONS.get(code, "OTHER")] += int(count)
    for (model, number, reason), count in counts.items():
        yield write.counter((("model", model), ("version", number), ("reason", reason)), count)


def _durations(measured: Measurements, write: UpstreamLines) -> Iterator[str]:
    sums_s = defaultdict[ServableId, float](float)
    for servable, latencies in _answered(measured):
        sums_s[servable] += latencies.number_and_sum()[1]
    return _of_versions(write, {servable: total_s * MICROSECONDS for servable, total_s in sums_s.items()})


def _rows(measured: Measurements, write: UpstreamLines) -> Iterator[str]:
    return _of_versions(write, _totals(measured.batches.rows, 1))


def _batches(measured: Measurements, write: UpstreamLines) -> Iterator[str]:
    return _of_versions(write, _totals(measured.batches.rows, 0))


def _queue_times(measured: Measurements, write: UpstreamLines) -> Iterator[str]:
    waits_s = _totals(measured.batches.queue_wait, 1)
    return _of_versions(write, {servable: wait_s * MICROSECONDS for servable, wait_s in waits_s.items()})


def _run_times(measured: Measurements, write: UpstreamLines) -> Iterator[str]:
    runs_s = defaultdict[ServableId, float](float)
    for key, run_s in measured.batches.compute_s().items():
        runs_s[key.servable] += run_s
    return _of_versions(write, {servable: run_s * MICROSECONDS for servable, run_s in runs_s.items()})


def _pending(measured: Measurements, write: UpstreamLines) -> Iterator[str]:
    return _of_versions(write, {id_: queue.requests for id_, queue in measured.server.queued().items()})


def _cache(figure: int, scale: float) -> Callable[[Measurements, UpstreamLines], Iterable[str]]:
    def lines(measured: Measurements, write: UpstreamLines) -> Iterator[str]:
        return _of_versions(write, {id_: counts[figure] * scale for id_, counts in measured.caches().items()})

    return lines


def _totals(series: Series[BatchKey], figure: int) -> dict[ServableId, float]:
    """Return the numbers of values by version, or their sums if `figure` is 1."""
    totals = defaultdict[ServableId, float](float)
    for key, histogram in series.items():
        totals[key.servable] += histogram.number_and_sum()[figure]
    return totals


def _of_versions(write: UpstreamLines, values: Mapping[ServableId, float]) -> Iterator[str]:
    return (
        write.counter((("model", servable.name), ("version", str(servable.version))), round(value))
        for servable, value in values.items()
    )


TRITON_FAMILIES: Final = (
    UpstreamFamily("nv_inference_request_success", "counter", _VERSION, "Successful inference requests.", _successes),
    UpstreamFamily(
        "nv_inference_request_failure",
        "counter",
        (*_VERSION, "reason"),
        "Failed inference requests for a configured model. `version` is empty if the request failed before the server "
        "found it. REJECTED: refused, too late or unavailable. BACKEND: an internal error.",
        _failures,
    ),
    UpstreamFamily("nv_inference_count", "counter", _VERSION, "Rows of batches, without padding.", _rows),
    UpstreamFamily("nv_inference_exec_count", "counter", _VERSION, "Batches that ran.", _batches),
    UpstreamFamily(
        "nv_inference_request_duration_us",
        "counter",
        _VERSION,
        "Microseconds of successful inference requests, from arrival to response.",
        _durations,
    ),
    UpstreamFamily(
        "nv_inference_queue_duration_us", "counter", _VERSION, "Microseconds of requests in the queue.", _queue_times
    ),
    UpstreamFamily(
        "nv_inference_compute_infer_duration_us",
        "counter",
        _VERSION,
        "Microseconds of batches on the device, each counted once for each of its requests.",
        _run_times,
    ),
    UpstreamFamily(
        "nv_inference_pending_request_count", "gauge", _VERSION, "Requests that wait for a batch to start.", _pending
    ),
    UpstreamFamily(
        "nv_cache_num_hits_per_model", "counter", _VERSION, "Responses from the response cache.", _cache(0, 1)
    ),
    UpstreamFamily(
        "nv_cache_num_misses_per_model", "counter", _VERSION, "Requests that the cache did not have.", _cache(1, 1)
    ),
    UpstreamFamily(
        "nv_cache_hit_duration_per_model",
        "counter",
        _VERSION,
        "Microseconds of look-ups that found a response.",
        _cache(4, MICROSECONDS),
    ),
    UpstreamFamily(
        "nv_cache_miss_duration_per_model",
        "counter",
        _VERSION,
        "Microseconds of look-ups that found none, and of storing the response.",
        _cache(5, MICROSECONDS),
    ),
)
