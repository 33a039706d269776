"""ExecutorChoice: uses the first candidate that can run a version, and reports why earlier ones cannot."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Self

from tpuserve_server.core.terms.errors import FailedPrecondition, Internal, ServingError
from tpuserve_server.core.terms.servable import DeviceMetrics, Servable, VersionFiles
from tpuserve_server.core.terms.tracer import TraceOptions, Tracer
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.executors.candidate import Candidate, ChosenServable, Refusal
from tpuserve_server.executors.catalogue import executor_plugins
from tpuserve_server.executors.plugin import ExecutorContext, MissingRuntime

_log = logging.getLogger(__name__)


class ExecutorChoice:
    """Executor that loads with the first candidate that does not refuse. Keeps no state between loads."""

    def __init__(self, candidates: Sequence[Candidate], metrics: DeviceMetrics) -> None:
        """Take the candidates, in order of preference."""
        self._candidates = candidates
        self._metrics = metrics

    @classmethod
    def of(cls, context: ExecutorContext) -> Self:
        """Make the candidates of the catalogue. Each imports its runtime for the first version that it takes."""
        made = [plugin.make(context) for plugin in reversed(executor_plugins())]
        return cls([candidate for candidate in made if candidate is not None], context.metrics)

    def load(self, servable_id: ServableId, version: VersionFiles) -> Servable:
        """Load the version. Slow.

        Raises:
            ServingError: the chosen candidate failed, or all candidates refused. The error is that of the last one.
        """
        refusals = [Refusal(FailedPrecondition("the server has no executor"))]
        for candidate in self._candidates:
            reported = [refusal for refusal in refusals if refusal.label]
            try:
                loaded = candidate.load(servable_id, version)
            except ServingError as error:
                if not isinstance(error, MissingRuntime):
                    _log_choice(servable_id, candidate, reported)
                raise _with_failures(error, reported) from error
            if not isinstance(loaded, Refusal):
                return self._report(servable_id, candidate, loaded, reported)
            refusals.append(loaded)
        raise refusals[-1].error

    def _report(
        self, servable_id: ServableId, candidate: Candidate, servable: Servable, refusals: Sequence[Refusal]
    ) -> Servable:
        if not refusals:
            return servable
        _log_choice(servable_id, candidate, refusals)
        self._metrics.device_chosen(servable=servable_id, device=candidate.kind, fallback=refusals[0].label)
        return ChosenServable(servable, f"{servable.device}: {_reasons(refusals)}")

    def tracer(self) -> Tracer:
        """Return the tracer of the first candidate that has one now.

        Raises:
            Internal: no candidate has a tracer.
        """
        for candidate in self._candidates:
            if (tracer := candidate.tracer()) is not None:
                return tracer
        raise Internal("No executor can be profiled: no version has started one.")


def _reasons(refusals: Sequence[Refusal]) -> str:
    return "; ".join(refusal.error.message for refusal in refusals)


def _log_choice(servable_id: ServableId, candidate: Candidate, refusals: Sequence[Refusal]) -> None:
    if refusals:
        level = max(refusal.level for refusal in refusals)
        _log.log(level, "%s uses %s: %s", servable_id, candidate.name, _reasons(refusals))


def _with_failures(error: ServingError, refusals: Sequence[Refusal]) -> ServingError:
    """Add the failures of earlier candidates to the message. For a missing runtime, add every reason."""
    if isinstance(error, MissingRuntime):
        reasons = dict.fromkeys(reason for refusal in refusals for reason in (refusal.error.message, refusal.remedy))
        # The device programs fail with the same error if their host part needs the runtime.
        others = [reason for reason in reasons if reason and reason != error.message]
        return MissingRuntime(f"{error.message} ({'; '.join(others)})") if others else error
    failures = [f" ({refusal.failed} also failed: {refusal.error.message})" for refusal in refusals if refusal.failed]
    return type(error)(f"{error.message}{''.join(failures)}") if failures else error


class ChosenTracer:
    """Tracer and SpanRecorder that uses another tracer: that of the runtime that runs models.

    A runtime records only its own runs, and TensorBoard shows only one host plane. Spans are those of the runtime that
    records, so the trace shows the batches of every model. One thread at a time starts and stops; any may use spans.
    """

    __slots__ = ("_active", "_choose", "is_recording")

    def __init__(self, choose: Callable[[], Tracer]) -> None:
        """Take `choose`, which returns the tracer for a new session. It raises Internal if there is none."""
        self._choose = choose
        self._active: Tracer | None = None
        self.is_recording = False

    def start(self, options: TraceOptions) -> None:
        """Implement Tracer.start."""
        if self._active is not None:
            raise Internal("Another profiling session active.")
        tracer = self._choose()
        tracer.start(options)
        self._active, self.is_recording = tracer, True

    def stop(self) -> bytes:
        """Implement Tracer.stop."""
        tracer, self._active, self.is_recording = self._active, None, False
        if tracer is None:
            raise Internal("No profiling session is active.")
        return tracer.stop()

    def span(self, name: str, **facts: str | int) -> AbstractContextManager[object]:
        """Implement SpanRecorder.span."""
        # The session may have ended since the caller read `is_recording`.
        tracer = self._active
        return nullcontext() if tracer is None else tracer.span(name, **facts)
