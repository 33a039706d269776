"""TensorFlow Serving's own metrics: names, labels, buckets and text as its Prometheus exporter prints them.

After tensorflow_serving/util/prometheus_exporter.cc: names keep the colon that their first slash became, nothing but a
TYPE line stands above a family, and counters have no `_total`, which is why prometheus_client cannot print them.
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
# model_servers/server.cc names the pool so, unless the batching parameters do.
_THREAD_POOL = (("thread_pool_name", "model_server_batch_threads"),)
# What a classic session's runs are booked under (servables/tensorflow/predict_util.cc).
_RUNTIME = "TF1"
# gRPC's other methods are not counted upstream. REST's all are, but only these have a name there.
_REST_APIS = {"Predict": "predict", "Classify": "classify", "Regress": "regress"}
_LOG_CODES = {"written": Code.OK, "queue_full": Code.RESOURCE_EXHAUSTED, "write_failed": Code.INTERNAL}

# Label names with values, in upstream's order.
_Labels: TypeAlias = tuple[tuple[str, str], ...]
# Name, kind, and lines below the TYPE line.
_Family: TypeAlias = tuple[str, str, Iterable[str]]


def upstream_page(measured: Measurements) -> str:
    """The lines that TensorFlow Serving's page would have of these measurements; by name, as there."""
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
    """Upstream times what succeeded alone."""
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
    """Upstream measures what has recorded requests; a warm-up that fails it hardly ever does, and here never."""
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


# The text.


def _counter(labels: _Labels, value: int) -> str:
    return f"{{{_text(labels)}}} {value}"


def _series(series: Series[Key], labels: Callable[[Key], _Labels]) -> Iterator[str]:
    for key, histogram in series.items():
        yield from _histogram(labels(key), histogram.bounds.tolist(), *histogram.cumulative())


def _histogram(labels: _Labels, bounds: Sequence[float], counts: Sequence[int], total: float) -> Iterator[str]:
    # A bound has six digits there, as absl::StrCat prints a double; a sum too, but here it keeps what it has.
    for limit, count in zip([*(f"{bound:g}" for bound in bounds), "+Inf"], counts, strict=True):
        yield f"_bucket{{{_text((*labels, ('le', limit)))}}} {count}"
    yield f"_sum{{{_text(labels)}}} {total:.15g}"
    yield f"_count{{{_text(labels)}}} {counts[-1]}"


def _text(labels: _Labels) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)


def _escaped(value: str) -> str:
    # Upstream leaves line feeds alone, with which a page cannot be read.
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
