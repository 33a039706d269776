"""Measurements of requests, at the edge of the front-ends."""

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from tpuserve_server.core.terms.errors import Code, Fault
from tpuserve_server.observe.metrics.catalogue import (
    FAILED,
    REQUESTS,
    STAGE_REQUESTS,
    STAGE_SECONDS,
    UPSTREAM_EXAMPLES,
    UPSTREAM_REQUESTS,
)
from tpuserve_server.observe.metrics.histogram import (
    BOTH_LATENCY_BOUNDS_S,
    LATENCY_BOUNDS_S,
    UPSTREAM_EXAMPLE_BOUNDS,
    Exemplars,
    Histogram,
    TracedRequest,
)
from tpuserve_server.observe.metrics.series import OTHER, OTHER_VERSION, Counts, ModelPlaces, Places, Series


class RequestKey(NamedTuple):
    """Key of a series of requests. `version` is None and `signature` is empty if none was found or needed."""

    model: str
    version: int | None
    signature: str
    method: str
    protocol: str
    code: Code


# A request's key as a plain tuple, which takes a third of the time to create.
_Request: TypeAlias = tuple[str, int | None, str, str, str, Code]


# Model, version, method, code and fault.
_Failure: TypeAlias = tuple[str, int | None, str, Code, Fault]


def _fold_request(key: _Request, model: str) -> _Request:
    return (model, OTHER_VERSION, OTHER, *key[3:])


class RequestMeasurements:
    """The part of core.models.metrics.Metrics that front-ends call. Thread-safe, as its counts and histograms are."""

    def __init__(self, models: ModelPlaces) -> None:
        """Start with no measurements."""
        self.stages_s = Counts[tuple[str, str, str]](
            Places(STAGE_SECONDS.name, lambda key: key[1], lambda key, model: (key[0], model, key[2]), models)
        )
        self.stage_requests = Counts[tuple[str, str]](
            Places(STAGE_REQUESTS.name, lambda key: key[1], lambda key, model: (key[0], model), models)
        )
        self.traced = Counts[str]()
        self._requests = Series[_Request](
            BOTH_LATENCY_BOUNDS_S, Places(REQUESTS.name, lambda key: key[0], _fold_request, models)
        )
        # For upstream's metrics, without version and signature.
        self._ended_requests = Series[_Request](
            BOTH_LATENCY_BOUNDS_S,
            Places(UPSTREAM_REQUESTS, lambda key: key[0], lambda key, model: (model, *key[1:]), models),
        )
        self.failed = Counts[_Failure](
            Places(FAILED.name, lambda key: key[0], lambda key, model: (model, OTHER_VERSION, *key[2:]), models)
        )
        self._exemplars = Exemplars[_Request](LATENCY_BOUNDS_S)
        self.examples = Series[str](
            UPSTREAM_EXAMPLE_BOUNDS, Places(UPSTREAM_EXAMPLES, lambda key: key, lambda _, model: model, models)
        )

    # Called by front-ends.

    def request_finished(
        self,
        *,
        model: str,
        version: int | None,
        signature: str,
        method: str,
        protocol: str,
        code: Code,
        latency_s: float,
        trace_id: str = "",
    ) -> None:
        """Record the response of a front-end."""
        key = (model, version, signature, method, protocol, code)
        (self._requests.find(key) or self._requests[key]).add(latency_s)
        if trace_id:
            self._exemplars.add(self._requests.counted_as(key), TracedRequest(trace_id, latency_s, time.time()))

    def request_failed(self, *, model: str, version: int | None, method: str, code: Code, fault: Fault) -> None:
        """Record whose fault an error is."""
        self.failed.add((model, version, method, code, fault))

    def answers_of(
        self, *, model: str, version: int, signature: str, method: str, protocol: str
    ) -> Callable[[float, str], None]:
        """Return a function that records the latency and the trace of a response, without a search for its series."""
        key = (model, version, signature, method, protocol, Code.OK)
        add: Callable[[float], None] | None = None

        def record(latency_s: float, trace_id: str) -> None:
            nonlocal add
            if add is None:
                add = self._requests[key].add
            add(latency_s)
            if trace_id:
                self._exemplars.add(self._requests.counted_as(key), TracedRequest(trace_id, latency_s, time.time()))

        return record

    def stages_sampled(self, *, protocol: str, model: str, stages: Iterable[tuple[str, float]], requests: int) -> None:
        """Record the stages of one request for several."""
        self.stage_requests.add((protocol, model), requests)
        for stage, duration_s in stages:
            self.stages_s.add((protocol, model, stage), duration_s * requests)

    def examples_received(self, *, model: str, count: int) -> None:
        """Record the number of tf.Examples in a request."""
        self.examples[model].add(count)

    def requests_traced(self, *, outcome: str, count: int) -> None:
        """Record traced requests: `exported`, or dropped as `rate`, `queue_full`, `export_failed` or `rejected`."""
        self.traced.add(outcome, count)

    def forget_requests(self, removed: Collection[tuple[str, int | None]]) -> None:
        """Remove the series of versions, by model and number. Upstream's metrics keep their counts."""
        self._exemplars.forget(lambda key: key[:2] in removed)
        self.failed.forget(lambda key: key[:2] in removed)
        for key, histogram in self._requests.take(lambda key: key[:2] in removed):
            model, _, _, method, protocol, code = key
            self._ended_requests[(model, None, "", method, protocol, code)].absorb(histogram)

    # Read by the metrics page.

    def requests(self) -> Iterator[tuple[RequestKey, Histogram]]:
        """Return request latencies in seconds by key, without those of ended versions."""
        return ((RequestKey(*key), histogram) for key, histogram in self._requests.items())

    def all_requests(self) -> Iterator[tuple[RequestKey, Histogram]]:
        """Return the latencies of `requests`, then those of ended versions. A key may occur twice."""
        ended = ((RequestKey(*key), histogram) for key, histogram in self._ended_requests.items())
        return itertools.chain(self.requests(), ended)

    def exemplars(self, key: RequestKey) -> Mapping[int, TracedRequest]:
        """Return the last traced request in each bucket of LATENCY_BOUNDS_S, by the bucket's position."""
        return self._exemplars.by_bucket(key)
