"""TensorFlow Serving's own metrics: names, labels, buckets and text as its Prometheus exporter prints them.

The format is that of tensorflow_serving/util/prometheus_exporter.cc. prometheus_client cannot print it: names start
with a colon for their first slash, a family has only a TYPE line, and counters lack `_total`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from tpuserve_server.core.errors import Code
from tpuserve_server.metrics.bounds import (
    BOTH_LATENCY_BOUNDS_S,
    MICROSECONDS,
    UPSTREAM_LATENCY_BOUNDS_S,
    UPSTREAM_LATENCY_BOUNDS_US,
)
from tpuserve_server.metrics.histogram import Histogram
from tpuserve_server.metrics.measurements import Measurements, RequestKey, Warmup
from tpuserve_server.metrics.series import Key, Series, summed

_BATCHING = "tensorflow:serving:batching_session"
# Default name of the pool in model_servers/server.cc, which upstream's batching parameters can override.
_THREAD_POOL = (("thread_pool_name", "model_server_batch_threads"),)
# Runtime label of a classic session (servables/tensorflow/predict_util.cc).
_RUNTIME = "TF1"
# Upstream counts no other methods of gRPC. It counts all methods of REST, but names only these.
_REST_APIS = {"Predict": "predict", "Classify": "classify", "Regress": "regress"}
_LOG_CODES = {"written": Code.OK, "queue_full": Code.RESOURCE_EXHAUSTED, "write_failed": Code.INTERNAL}

# Label names with values, in upstream's order.
_Labels: TypeAlias = tuple[tuple[str, str], ...]
# Name, kind, and lines below the TYPE line.
_Family: TypeAlias = tuple[str, str, Iterable[str]]


def upstream_page(measured: Measurements) -> str:
    """Return these measurements as TensorFlow Serving's page, sorted by name as upstream's."""
    lines = []
    for name, kind, samples in sorted(_families(measured)):
        below = [f":{name}{sample}" for sample in samples]
        lines += [f"# TYPE :{name} {kind}", *below] if below else []
    return "".join(f"{line}\n" for line in lines)


def _families(measured: Measurements) -> Iterator[_Family]:
    def size(key: int) -> _Labels:
        return (("execution_batch_size", str(key)),)

    yield f"{_BATCHING}:input_batch_size", "histogram", _series(measured.batches.request_rows, lambda _: ())
    yield f"{_BATCHING}:padding_size", "histogram", _series(measured.batches.padding_rows, size)
    yield f"{_BATCHING}:processed_batch_size", "histogram", _series(measured.batches.batch_rows, lambda _: ())
    yield f"{_BATCHING}:queuing_latency", "histogram", _series(measured.batches.queuing, lambda _: _THREAD_POOL)
    yield f"{_BATCHING}:wrapped_run_count", "counter", _run_count(measured)
    yield "tensorflow:serving:model_warmup_latency", "histogram", _warmup_latencies(measured)
    yield "tensorflow:serving:model_warmup_records_read", "counter", _warmup_records(measured)
    yield "tensorflow:serving:request_count", "counter", _request_counts(measured)
    yield "tensorflow:serving:request_example_count_total", "counter", _example_counts(measured)
    yield "tensorflow:serving:request_example_counts", "histogram", _series(measured.examples, _example_labels)
    yield "tensorflow:serving:request_latency", "histogram", _request_latencies(measured)
    yield "tensorflow:serving:request_log_count", "counter", _log_counts(measured)
    yield "tensorflow:serving:runtime_latency", "histogram", _series(measured.batches.runtime, _runtime_labels)


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
        yield _counter(_example_labels(model), int(histogram.cumulative()[1]))


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
    for (model, outcome), count in measured.logged().items():
        yield _counter((("model_name", model), ("status_code", _LOG_CODES[outcome].name)), count)


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
