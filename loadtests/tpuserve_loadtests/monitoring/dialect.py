"""Metric names: tpuserve's own, and TensorFlow Serving's for its servers.

tpuserve's page has both families. Its own metrics distinguish versions and are more detailed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tpuserve_loadtests.monitoring.page import Buckets, Choices, Page

_UPSTREAM: Final = ":tensorflow:serving:"
_BATCHING: Final = f"{_UPSTREAM}batching_session:"
_OURS: Final = "tpuserve_version_state"
_OK: Final = "OK"
_SECONDS: Final = 1e3  # to milliseconds
_MICROSECONDS: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Served:
    """The models whose metrics apply, each with a version, or None for all versions."""

    models: tuple[tuple[str, int | None], ...]

    @property
    def own(self) -> Choices:
        """Label sets of tpuserve's metrics."""
        return [
            {"model_name": name} if version is None else {"model_name": name, "version": str(version)}
            for name, version in self.models
        ]

    @property
    def upstream(self) -> Choices:
        """Label sets of TensorFlow Serving's metrics, which do not distinguish versions."""
        return [{"model_name": name} for name, _ in self.models]


@dataclass(frozen=True, slots=True)
class Figures:
    """A server's metrics over a period. Times are milliseconds. Missing metrics are None or empty.

    `request` covers successful requests, from arrival to response. `queue` covers requests, from arrival to batch.
    `run` covers batches, on the device. `queue_and_run` covers requests, from arrival to the end of their batch. `rows`
    is the mean number of real rows in a batch.
    """

    request: Buckets
    queue: Buckets
    run: Buckets
    queue_and_run: Buckets
    rows: float | None
    padding_share: float | None
    answers: Mapping[str, float]
    refused: Mapping[str, float]
    cpu_s: float | None
    busy_s: Mapping[str, float]


def read_figures(counted: Page, served: Served) -> Figures:
    """Return the served models' metrics from a page of differences (Page.since)."""
    own = counted.has(_OURS)
    return _own_figures(counted, served) if own else _upstream_figures(counted, served)


def memory_bytes(page: Page) -> float | None:
    """Return the resident memory of the server's process, in bytes."""
    return page.total("process_resident_memory_bytes")


def start_time_s(page: Page) -> float | None:
    """Return the start of the server's process, in Unix seconds."""
    return page.total("process_start_time_seconds")


def _own_figures(counted: Page, served: Served) -> Figures:
    successful = [{**labels, "code": _OK} for labels in served.own]
    return Figures(
        request=counted.buckets("tpuserve_request_latency_seconds", successful, _SECONDS),
        queue=counted.buckets("tpuserve_queue_wait_seconds", served.own, _SECONDS),
        run=counted.buckets("tpuserve_batch_run_seconds", served.own, _SECONDS),
        queue_and_run=counted.buckets(f"{_UPSTREAM}runtime_latency", served.upstream, _MICROSECONDS),
        rows=counted.buckets("tpuserve_batch_rows", served.own).mean,
        padding_share=counted.buckets("tpuserve_batch_padding_ratio", served.own).mean,
        answers=_counted(counted.totals("tpuserve_requests_total", "code", served.own)),
        refused=_counted(counted.totals("tpuserve_dropped_requests_total", "reason", served.own)),
        cpu_s=counted.total("process_cpu_seconds_total"),
        busy_s=counted.totals("tpuserve_device_busy_seconds_total", "device"),
    )


def _upstream_figures(counted: Page, served: Served) -> Figures:
    """Read TensorFlow Serving's metrics. Its batching metrics cover all models together."""
    batches = counted.buckets(f"{_BATCHING}processed_batch_size")
    padding = counted.buckets(f"{_BATCHING}padding_size")
    return Figures(
        request=counted.buckets(f"{_UPSTREAM}request_latency", served.upstream, _MICROSECONDS),
        queue=counted.buckets(f"{_BATCHING}queuing_latency", scale=_MICROSECONDS),
        run=Buckets({}, 0.0),
        queue_and_run=counted.buckets(f"{_UPSTREAM}runtime_latency", served.upstream, _MICROSECONDS),
        rows=(batches.total - padding.total) / batches.count if batches.count else None,
        padding_share=padding.total / batches.total if batches.total else None,
        answers=_counted(counted.totals(f"{_UPSTREAM}request_count", "status", served.upstream)),
        refused={},
        cpu_s=counted.total("process_cpu_seconds_total"),
        busy_s={},
    )


def _counted(totals: Mapping[str, float]) -> dict[str, float]:
    return {name: count for name, count in totals.items() if count}
