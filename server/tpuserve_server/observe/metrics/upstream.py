"""TensorFlow Serving's own metrics: names, labels, buckets and text as its Prometheus exporter prints them.

The format is that of tensorflow_serving/util/prometheus_exporter.cc. prometheus_client cannot print it: names start
with a colon for their first slash, a family has only a TYPE line, and counters lack `_total`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tpuserve_server.core.terms.errors import Code
from tpuserve_server.observe.metrics.histogram import (
    BOTH_LATENCY_BOUNDS_S,
    MICROSECONDS,
    UPSTREAM_LATENCY_BOUNDS_S,
    UPSTREAM_LATENCY_BOUNDS_US,
    Histogram,
)
from tpuserve_server.observe.metrics.measurements import Measurements, Warmup
from tpuserve_server.observe.metrics.request_measurements import RequestKey
from tpuserve_server.observe.metrics.series import Key, Series, summed

_SERVING = ":tensorflow:serving:"
_BATCHING = f"{_SERVING}batching_session:"
# Default name of the pool in model_servers/server.cc, which upstream's batching parameters can override.
_THREAD_POOL = (("thread_pool_name", "model_server_batch_threads"),)
# Runtime label of a classic session (servables/tensorflow/predict_util.cc).
_RUNTIME = "TF1"
# Upstream counts no other methods of gRPC. It counts all methods of REST, but names only these.
_REST_APIS = {"Predict": "predict", "Classify": "classify", "Regress": "regress"}
_LOG_CODES = {"written": Code.OK, "queue_full": Code.RESOURCE_EXHAUSTED, "write_failed": Code.INTERNAL}

# Label names with values, in upstream's order.
_Labels: TypeAlias = tuple[tuple[str, str], ...]

# Meanings of the label values, by label, except those of the server's own metrics.
UPSTREAM_LABELS: Final = {
    "model": "name of a configured model",
    "API": "the method, such as Predict; empty for REST requests that upstream does not name",
    "entrypoint": "GRPC, REST",
    "status": "canonical code, such as OK",
    "status_code": "canonical code of the outcome of a log entry",
    "runtime": _RUNTIME,
    "thread_pool_name": "model_server_batch_threads",
    "execution_batch_size": "rows of a batch with padding",
    "model_path": "directory of a version",
}


@dataclass(frozen=True, slots=True)
class UpstreamFamily:
    """One of upstream's metrics. `samples` returns the lines below its TYPE line, without the name."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str
    samples: Callable[[Measurements], Iterable[str]]


def upstream_page(measured: Measurements) -> str:
    """Return these measurements as TensorFlow Serving's page, sorted by name as upstream's."""
    lines = []
    for family in UPSTREAM_FAMILIES:
        below = [f"{family.name}{sample}" for sample in family.samples(measured)]
        lines += [f"# TYPE {family.name} {family.kind}", *below] if below else []
    return "".join(f"{line}\n" for line in lines)


def _request_counts(measured: Measurements) -> Iterator[str]:
    for labels, histogram in summed(measured.all_requests(), BOTH_LATENCY_BOUNDS_S, _counted_as).items():
        yield _counter(labels, histogram.total())


def _counted_as(key: RequestKey) -> _Labels | None:
    if key.protocol == "grpc" and key.method not in _REST_APIS:
        return None
    return (("model_name", key.model), ("status", key.code.name))


def _request_latencies(measured: Measurements) -> Iterator[str]:
    for labels, histogram in summed(measured.all_requests(), BOTH_LATENCY_BOUNDS_S, _timed_as).items():
        counts, total_s = histogram.cumulative(UPSTREAM_LATENCY_BOUNDS_S)
        yield from _histogram(labels, UPSTREAM_LATENCY_BOUNDS_US, counts, total_s * MICROSECONDS)


def _timed_as(key: RequestKey) -> _Labels | None:
    """Return the labels of the latency, or None for a request that upstream does not time, such as a failed one."""
    if key.code is not Code.OK or _counted_as(key) is None:
        return None
    api = key.method if key.protocol == "grpc" else _REST_APIS.get(key.method, "")
    return (("model_name", key.model), ("API", api), ("entrypoint", key.protocol.upper()))


def _runtime_labels(key: tuple[str, str]) -> _Labels:
    model, api = key
    return (("model_name", model), ("API", api), ("runtime", _RUNTIME))


def _example_counts(measured: Measurements) -> Iterator[str]:
    for model, histogram in measured.examples.items():
        yield _counter(_example_labels(model), int(histogram.number_and_sum()[1]))


def _example_labels(model: str) -> _Labels:
    return (("model", model),)


def _recorded_warmups(measured: Measurements) -> Iterator[tuple[_Labels, Warmup]]:
    """Yield warm-ups with recorded requests, as upstream. This server never reports a failed warm-up."""
    for warmup in measured.warmups().values():
        if warmup.records:
            yield (("model_path", str(warmup.path)), ("status", "OK")), warmup


def _warmup_latencies(measured: Measurements) -> Iterator[str]:
    for labels, warmup in _recorded_warmups(measured):
        histogram = Histogram(UPSTREAM_LATENCY_BOUNDS_US)
        histogram.add(warmup.duration_s * MICROSECONDS)
        yield from _histogram(labels, UPSTREAM_LATENCY_BOUNDS_US, *histogram.cumulative())


def _warmup_records(measured: Measurements) -> Iterator[str]:
    for labels, warmup in _recorded_warmups(measured):
        yield _counter(labels, warmup.records)


def _log_counts(measured: Measurements) -> Iterator[str]:
    for (model, outcome), count in measured.logged.all().items():
        yield _counter((("model_name", model), ("status_code", _LOG_CODES[outcome].name)), int(count))


def _run_count(measured: Measurements) -> Iterator[str]:
    for histogram in measured.batches.batch_rows.values():
        yield _counter((), histogram.total())


# Text format.


def _counter(labels: _Labels, value: int) -> str:
    return f"{{{_text(labels)}}} {value}"


def _series(series: Series[Key], labels: Callable[[Key], _Labels]) -> Iterator[str]:
    for key, histogram in series.items():
        yield from _histogram(labels(key), histogram.bounds.tolist(), *histogram.cumulative())


def _histogram(labels: _Labels, bounds: Sequence[float], counts: Sequence[int], total: float) -> Iterator[str]:
    # Upstream prints six digits of bounds and sums (absl::StrCat). Sums keep their precision here.
    for limit, count in zip([*(f"{bound:g}" for bound in bounds), "+Inf"], counts, strict=True):
        yield f"_bucket{{{_text((*labels, ('le', limit)))}}} {count}"
    yield f"_sum{{{_text(labels)}}} {total:.15g}"
    yield f"_count{{{_text(labels)}}} {counts[-1]}"


def _text(labels: _Labels) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)


def _escaped(value: str) -> str:
    # Upstream does not escape line feeds, which breaks the page.
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _size_labels(rows: int) -> _Labels:
    return (("execution_batch_size", str(rows)),)


# Sorted by name.
UPSTREAM_FAMILIES: Final = (
    UpstreamFamily(
        f"{_BATCHING}input_batch_size",
        "histogram",
        (),
        "Rows of a request.",
        lambda measured: _series(measured.batches.request_rows, lambda _: ()),
    ),
    UpstreamFamily(
        f"{_BATCHING}padding_size",
        "histogram",
        ("execution_batch_size",),
        "Rows of padding of a batch. The label is the number of rows with padding, or the next power of two for a "
        "signature without fixed sizes.",
        lambda measured: _series(measured.batches.padding_rows, _size_labels),
    ),
    UpstreamFamily(
        f"{_BATCHING}processed_batch_size",
        "histogram",
        (),
        "Rows of a batch with padding.",
        lambda measured: _series(measured.batches.batch_rows, lambda _: ()),
    ),
    UpstreamFamily(
        f"{_BATCHING}queuing_latency",
        "histogram",
        ("thread_pool_name",),
        "Microseconds from a request's arrival to the start of its batch.",
        lambda measured: _series(measured.batches.queuing, lambda _: _THREAD_POOL),
    ),
    UpstreamFamily(f"{_BATCHING}wrapped_run_count", "counter", (), "Batches that ran.", _run_count),
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
        f"{_SERVING}request_count",
        "counter",
        ("model_name", "status"),
        "Predict, Classify and Regress over gRPC, and all REST requests.",
        _request_counts,
    ),
    UpstreamFamily(
        f"{_SERVING}request_example_count_total", "counter", ("model",), "tf.Examples in total.", _example_counts
    ),
    UpstreamFamily(
        f"{_SERVING}request_example_counts",
        "histogram",
        ("model",),
        "tf.Examples of a request.",
        lambda measured: _series(measured.examples, _example_labels),
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
        f"{_SERVING}runtime_latency",
        "histogram",
        ("model_name", "API", "runtime"),
        "Microseconds from a request's arrival in the queue to the end of its run. `API` is that of the signature.",
        lambda measured: _series(measured.batches.runtime, _runtime_labels),
    ),
)
