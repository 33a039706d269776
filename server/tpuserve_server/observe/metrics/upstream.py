"""TensorFlow Serving's and TensorFlow's metrics: names, labels and buckets as TensorFlow Serving's page has them."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tpuserve_server.core.system.threads import let_others_run
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.observe.metrics.catalogue import UPSTREAM_EXAMPLES, UPSTREAM_REQUESTS, UPSTREAM_RUNTIME
from tpuserve_server.observe.metrics.exposition import PLAIN, TextFormat, UpstreamLines, upstream_head
from tpuserve_server.observe.metrics.histogram import (
    BOTH_LATENCY_BOUNDS_S,
    MICROSECONDS,
    MILLISECOND_US,
    UPSTREAM_LATENCY_BOUNDS_S,
    UPSTREAM_LATENCY_BOUNDS_US,
    Histogram,
)
from tpuserve_server.observe.metrics.measurements import Measurements, Warmup
from tpuserve_server.observe.metrics.request_measurements import RequestKey
from tpuserve_server.observe.metrics.series import Key, Series

# tensorflow/cc/saved_model/loader.cc and tensorflow/core/framework/metrics.cc.
_SAVED_MODEL = ":tensorflow:cc:saved_model:"
_CORE = ":tensorflow:core:"
_SERVING = ":tensorflow:serving:"
_BATCHING = f"{_SERVING}batching_session:"
# Default name of the pool in model_servers/server.cc, which upstream's batching parameters can override.
_THREAD_POOL = (("thread_pool_name", "model_server_batch_threads"),)
# Runtime label of a classic session (servables/tensorflow/predict_util.cc).
_RUNTIME = "TF1"
# Upstream counts no other methods of gRPC. It counts all methods of REST, but names only these.
_REST_APIS = {"Predict": "predict", "Classify": "classify", "Regress": "regress"}
_RESTORE = "restore_graph"
_LOG_CODES = {"written": Code.OK, "queue_full": Code.RESOURCE_EXHAUSTED, "write_failed": Code.INTERNAL}

# Label names with values, in upstream's order.
_Labels: TypeAlias = tuple[tuple[str, str], ...]

# Meanings of the label values, by label, except those of the server's own metrics.
UPSTREAM_LABELS: Final = {
    "model": "name of a configured model",
    "API": "the method, such as Predict; empty for REST requests that upstream does not name",
    "entrypoint": "GRPC, REST",
    "status": "canonical code, such as OK; success or fail for a load",
    "status_code": "canonical code of the outcome of a log entry",
    "runtime": _RUNTIME,
    "thread_pool_name": "model_server_batch_threads",
    "execution_batch_size": "rows of a batch with padding",
    "model_path": "directory of a version, or its address in a store",
}


@dataclass(frozen=True, slots=True)
class UpstreamFamily:
    """A metric with the name of another server. `lines` yields those below its TYPE line."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    text: str
    lines: Callable[[Measurements, UpstreamLines], Iterable[str]]


def upstream_lines(
    measured: Measurements, families: Iterable[UpstreamFamily], form: TextFormat = PLAIN
) -> Iterator[str]:
    """Yield these measurements as the page of another server."""
    for family in families:
        head = upstream_head(family.name, family.kind, form)
        for line in family.lines(measured, UpstreamLines(family.name, form)):
            yield head + line
            head = ""


def _request_counts(measured: Measurements, write: UpstreamLines) -> Iterator[str]:
    counts = Counter[_Labels]()
    for key, histogram in measured.all_requests():
        let_others_run()
        if (labels := _counted_as(key)) is not None:
            counts[labels] += histogram.total()
    return (write.counter(labels, count) for labels, count in counts.items())


def _counted_as(key: RequestKey) -> _Labels | None:
    if key.protocol == "grpc" and key.method not in _REST_APIS:
        return None
    return (("model_name", key.model), ("status", key.code.name))


def _request_latencies(measured: Measurements, write: UpstreamLines) -> Iterator[str]:
    sums: dict[_Labels, Histogram] = {}
    for key, histogram in measured.all_requests():
        let_others_run()
        if (labels := _timed_as(key)) is not None:
            sums.setdefault(labels, Histogram(BOTH_LATENCY_BOUNDS_S)).absorb(histogram)
    for labels, summed in sums.items():
        counts, total_s = summed.cumulative(UPSTREAM_LATENCY_BOUNDS_S)
        yield write.histogram(labels, UPSTREAM_LATENCY_BOUNDS_US, counts, total_s * MICROSECONDS, MILLISECOND_US)


def _timed_as(key: RequestKey) -> _Labels | None:
    """Return the labels of the latency, or None for a request that upstream does not time, such as a failed one."""
    if key.code is not Code.OK or _counted_as(key) is None:
        return None
    api = key.method if key.protocol == "grpc" else _REST_APIS.get(key.method, "")
    return (("model_name", key.model), ("API", api), ("entrypoint", key.protocol.upper()))


def _runtimes(measured: Measurements, write: UpstreamLines) -> Iterator[str]:
    for (model, api), histogram in measured.batches.runtime.items():
        labels = (("model_name", model), ("API", api), ("runtime", _RUNTIME))
        yield write.histogram(labels, UPSTREAM_LATENCY_BOUNDS_US, *histogram.cumulative(), MILLISECOND_US)


def _example_counts(measured: Measurements, write: UpstreamLines) -> Iterator[str]:
    for model, histogram in measured.examples.items():
        yield write.counter((("model", model),), int(histogram.number_and_sum()[1]))


def _recorded_warmups(measured: Measurements) -> Iterable[tuple[_Labels, Sequence[Warmup]]]:
    """Return warm-ups with recorded requests by path, as upstream. This server never reports a failed warm-up."""
    by_path: dict[_Labels, list[Warmup]] = {}
    for warmup in measured.warmups().values():
        if warmup.records:
            by_path.setdefault((("model_path", str(warmup.path)), ("status", "OK")), []).append(warmup)
    return by_path.items()


def _warmup_latencies(measured: Measurements, write: UpstreamLines) -> Iterator[str]:
    for labels, warmups in _recorded_warmups(measured):
        histogram = Histogram(UPSTREAM_LATENCY_BOUNDS_US)
        histogram.add_all(warmup.duration_s * MICROSECONDS for warmup in warmups)
        yield write.histogram(labels, UPSTREAM_LATENCY_BOUNDS_US, *histogram.cumulative())


def _warmup_records(measured: Measurements, write: UpstreamLines) -> Iterator[str]:
    for labels, warmups in _recorded_warmups(measured):
        yield write.counter(labels, sum(warmup.records for warmup in warmups))


def _log_counts(measured: Measurements, write: UpstreamLines) -> Iterator[str]:
    for (model, outcome), count in measured.logged.all().items():
        yield write.counter((("model_name", model), ("status_code", _LOG_CODES[outcome].name)), int(count))


def _batch_counts(measured: Measurements, write: UpstreamLines) -> Iterator[str]:
    for histogram in measured.batches.batch_rows.values():
        yield write.counter((), histogram.total())


def _load_attempts(measured: Measurements, write: UpstreamLines) -> Iterator[str]:
    for loads in measured.paths.by_path():
        for status, count in (("success", loads.succeeded), ("fail", loads.failed)):
            if count:
                yield write.counter((("model_path", loads.path), ("status", status)), count)


def _load_times(measured: Measurements, write: UpstreamLines) -> Iterator[str]:
    for loads in measured.paths.by_path():
        yield write.counter((("model_path", loads.path),), round(loads.duration_s * MICROSECONDS))


def _load_stages(measured: Measurements, write: UpstreamLines) -> Iterator[str]:
    for loads in measured.paths.by_path():
        labels = (("model_path", loads.path), ("stage", _RESTORE))
        # A version has one load or a few.
        yield write.histogram(labels, UPSTREAM_LATENCY_BOUNDS_US, *loads.restores_us.cumulative(), math.inf)


def _histograms(series: Series[Key], write: UpstreamLines, labels: Callable[[Key], _Labels]) -> Iterator[str]:
    for key, histogram in series.items():
        yield write.histogram(labels(key), series.bounds, *histogram.cumulative())


def _one(value: Callable[[Measurements], float]) -> Callable[[Measurements, UpstreamLines], Iterable[str]]:
    """Return a writer of a counter without labels, which exists from the start: integrations find servers by it."""
    return lambda measured, write: (write.counter((), round(value(measured))),)


def _graph_runs(measured: Measurements) -> tuple[int, float]:
    """Return the number of runs and their microseconds."""
    totals = [histogram.number_and_sum() for histogram in measured.batches.graph_runs.values()]
    return sum(number for number, _ in totals), sum(total_us for _, total_us in totals)


def _size_labels(rows: int) -> _Labels:
    return (("execution_batch_size", str(rows)),)


def _no_labels(_: None) -> _Labels:
    return ()


# Sorted by name.
UPSTREAM_FAMILIES: Final = (
    UpstreamFamily(
        f"{_SAVED_MODEL}load_attempt_count",
        "counter",
        ("model_path", "status"),
        "Attempts to load a version: success, fail. Removed when a later version of the model has ended.",
        _load_attempts,
    ),
    UpstreamFamily(
        f"{_SAVED_MODEL}load_latency",
        "counter",
        ("model_path",),
        "Microseconds of these attempts without warm-up: copy, verification of the hashes, and executor.",
        _load_times,
    ),
    UpstreamFamily(
        f"{_SAVED_MODEL}load_latency_by_stage",
        "histogram",
        ("model_path", "stage"),
        "Microseconds of the executor in attempts that succeeded. The stage restore_graph contains init_graph, because "
        "TensorFlow's library runs both in one call.",
        _load_stages,
    ),
    UpstreamFamily(
        f"{_CORE}graph_build_calls",
        "counter",
        (),
        "Graphs that a runtime prepared to run: the inputs and outputs of a signature in TensorFlow, or a program or "
        "model of another runtime.",
        _one(lambda measured: measured.devices.graph_builds().number),
    ),
    UpstreamFamily(
        f"{_CORE}graph_build_time_usecs",
        "counter",
        (),
        "Microseconds that they took.",
        _one(lambda measured: measured.devices.graph_builds().duration_s * MICROSECONDS),
    ),
    UpstreamFamily(
        f"{_CORE}graph_run_time_usecs",
        "counter",
        (),
        "Microseconds of all batches on the device.",
        _one(lambda measured: _graph_runs(measured)[1]),
    ),
    UpstreamFamily(
        f"{_CORE}graph_run_time_usecs_histogram",
        "histogram",
        (),
        "Microseconds of a batch on the device.",
        lambda measured, write: _histograms(measured.batches.graph_runs, write, _no_labels),
    ),
    UpstreamFamily(
        f"{_CORE}graph_runs",
        "counter",
        (),
        "Batches that ran on the device, without those of warm-up.",
        _one(lambda measured: _graph_runs(measured)[0]),
    ),
    UpstreamFamily(
        f"{_CORE}xla_compilation_time_usecs",
        "counter",
        (),
        "Microseconds that XLA took to compile device programs, or to load them from the compilation cache.",
        _one(lambda measured: measured.devices.compilations().duration_s * MICROSECONDS),
    ),
    UpstreamFamily(
        f"{_CORE}xla_compilations",
        "counter",
        (),
        "Device programs that XLA compiled or loaded.",
        _one(lambda measured: measured.devices.compilations().number),
    ),
    UpstreamFamily(
        f"{_BATCHING}input_batch_size",
        "histogram",
        (),
        "Rows of a request.",
        lambda measured, write: _histograms(measured.batches.request_rows, write, _no_labels),
    ),
    UpstreamFamily(
        f"{_BATCHING}padding_size",
        "histogram",
        ("execution_batch_size",),
        "Rows of padding of a batch. The label is the number of rows with padding, or the next power of two for a "
        "signature without fixed sizes.",
        lambda measured, write: _histograms(measured.batches.padding_rows, write, _size_labels),
    ),
    UpstreamFamily(
        f"{_BATCHING}processed_batch_size",
        "histogram",
        (),
        "Rows of a batch with padding.",
        lambda measured, write: _histograms(measured.batches.batch_rows, write, _no_labels),
    ),
    UpstreamFamily(
        f"{_BATCHING}queuing_latency",
        "histogram",
        ("thread_pool_name",),
        "Microseconds from a request's arrival to the start of its batch.",
        lambda measured, write: _histograms(measured.batches.queuing, write, lambda _: _THREAD_POOL),
    ),
    UpstreamFamily(f"{_BATCHING}wrapped_run_count", "counter", (), "Batches that ran.", _batch_counts),
    UpstreamFamily(
        f"{_SERVING}model_warmup_latency",
        "histogram",
        ("model_path", "status"),
        "Microseconds of the warm-up of a version with recorded requests. Removed with the version.",
        _warmup_latencies,
    ),
    UpstreamFamily(
        f"{_SERVING}model_warmup_records_read",
        "counter",
        ("model_path", "status"),
        "Recorded requests that the server read. Removed with the version.",
        _warmup_records,
    ),
    UpstreamFamily(
        UPSTREAM_REQUESTS,
        "counter",
        ("model_name", "status"),
        "Predict, Classify and Regress over gRPC, and all REST requests.",
        _request_counts,
    ),
    UpstreamFamily(
        f"{_SERVING}request_example_count_total", "counter", ("model",), "tf.Examples in total.", _example_counts
    ),
    UpstreamFamily(
        UPSTREAM_EXAMPLES,
        "histogram",
        ("model",),
        "tf.Examples of a request.",
        lambda measured, write: _histograms(measured.examples, write, lambda model: (("model", model),)),
    ),
    UpstreamFamily(
        f"{_SERVING}request_latency",
        "histogram",
        ("model_name", "API", "entrypoint"),
        "Microseconds of successful requests. `entrypoint` is GRPC or REST.",
        _request_latencies,
    ),
    UpstreamFamily(
        f"{_SERVING}request_log_count",
        "counter",
        ("model_name", "status_code"),
        "Requests logged (OK), or selected for the log and dropped.",
        _log_counts,
    ),
    UpstreamFamily(
        UPSTREAM_RUNTIME,
        "histogram",
        ("model_name", "API", "runtime"),
        "Microseconds from a request's arrival in the queue to the end of its run. `API` is that of the signature.",
        _runtimes,
    ),
)
