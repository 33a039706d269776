"""RecordedServable: a servable whose runs are in the journal, and that reports runs of new shapes."""

import logging
import operator
from collections.abc import Hashable, Mapping, Sequence
from typing import Final

from tpuserve_server.core.models.ends import VersionEnds
from tpuserve_server.core.models.journal import Entry, Journal, Mark
from tpuserve_server.core.models.metrics import Metrics
from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument
from tpuserve_server.core.terms.servable import InFlight, Servable
from tpuserve_server.core.terms.types import ServableId, Signature, Tensors
from tpuserve_server.versions.manifest import SignatureEntry

_log = logging.getLogger(__name__)

# Maximum number of known shapes, because clients choose free dimensions. Other shapes are new at each run.
_MOST_SHAPES: Final = 4096
_shape_of = operator.attrgetter("shape")


class RecordedServable:
    """Wrapper of a servable that it owns. Thread-safe; two threads with one new shape may both report it.

    Shapes are a combination of a signature, outputs and input shapes. A device compiles for each. Warm-up runs the
    expected combinations. A request with another one waits for the compiler, and may end the process: the journal
    knows its form from `dispatch` until the result.

    A size outside of the ranges that the exporter has run is untried: nothing shows that the model answers such inputs
    as its source does.
    """

    def __init__(
        self,
        servable_id: ServableId,
        servable: Servable,
        metrics: Metrics,
        journal: Journal | None = None,
        entry: Entry | None = None,
    ) -> None:
        """Wrap `servable`, without known shapes. `entry` is that of its load in `journal`."""
        self._id = servable_id
        self._servable = servable
        self._metrics = metrics
        self._journal = journal
        self._entry = entry
        # Whether a run has completed, or need not be recorded.
        self._shapes: dict[Hashable, bool] = {}
        self._serves = False
        self._entries: Mapping[str, SignatureEntry] = {}
        # Signatures whose first untried size is in the log.
        self._logged: set[str] = set()
        # Copied, because every batch reads them.
        self.signatures = servable.signatures
        self.device = servable.device
        # A suspect waits for its turn, which belongs to a thread. Another one may take the results of runs in flight.
        self.max_in_flight = 1 if self.is_suspect else servable.max_in_flight
        self.unrepeatable = servable.unrepeatable
        self.never_blocks = servable.never_blocks and not self.is_suspect

    def serve(self, entries: Mapping[str, SignatureEntry]) -> None:
        """Report new shapes, and blame and refuse their forms: from now on, clients choose them.

        `entries` are the manifest's, by signature. They have the sizes that the exporter has run.
        """
        self._entries = entries
        self._serves = True

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        """Implement Servable.dispatch.

        Raises:
            InvalidArgument, FailedPrecondition: runs with such inputs end the process, so this one does not start.
        """
        shapes = (signature_name, tuple(output_names), *map(_shape_of, inputs.values()))
        if not self._shapes.get(shapes):
            return self._dispatch_new(shapes, signature_name, inputs, output_names)
        entry = self._entry
        if entry is None:
            return self._servable.dispatch(signature_name, inputs, output_names)
        mark = entry.begin_run()
        try:
            return _Run(self._servable.dispatch(signature_name, inputs, output_names), entry, mark)
        except BaseException:
            entry.end_run(mark)
            raise

    @property
    def is_suspect(self) -> bool:
        """Whether a load or a run of the version may have ended an earlier process."""
        return self._entry is not None and self._entry.is_suspect

    @property
    def ends(self) -> VersionEnds | None:
        """The forms that it refuses, or None without a journal."""
        return None if self._entry is None else self._entry.ends

    def close(self) -> None:
        """Close the servable. Blocks until done."""
        self._servable.close()
        if self._journal is not None and self._entry is not None:
            self._journal.forget(self._entry)

    def _dispatch_new(
        self, shapes: Hashable, signature_name: str, inputs: Tensors, output_names: Sequence[str]
    ) -> InFlight:
        entry = self._entry
        if shapes not in self._shapes:
            if self._serves:
                is_tried = self._is_tried(signature_name, inputs)
                self._metrics.shape_first_run(servable=self._id, signature=signature_name, is_tried=is_tried)
            if len(self._shapes) < _MOST_SHAPES:
                self._shapes[shapes] = entry is None
        if entry is None:
            return self._servable.dispatch(signature_name, inputs, output_names)
        form = describe_form(self.signatures[signature_name], inputs)
        try:
            mark = entry.begin_form(form, is_trial=not self._serves)
        except (InvalidArgument, FailedPrecondition):
            self._metrics.run_refused(servable=self._id, signature=signature_name)
            raise
        try:
            run = self._servable.dispatch(signature_name, inputs, output_names)
        except BaseException:
            entry.end_form(mark, form, completed=False)
            raise
        return _FirstRun(run, entry, mark, form, self._shapes, shapes)

    def _is_tried(self, signature_name: str, inputs: Tensors) -> bool:
        """Return whether the exporter may have run inputs of these sizes. Log the first that it has not."""
        entries = self._entries[signature_name].inputs if signature_name in self._entries else {}
        for name, array in inputs.items():
            if name in entries and not entries[name].has_tried(array.shape):
                if signature_name not in self._logged:
                    self._logged.add(signature_name)
                    _log.warning(
                        "%s runs input %r of signature %r with shape %s. The exporter has checked the sizes %s. "
                        "tpuserve_untried_runs_total counts such runs",
                        *(self._id, name, signature_name, list(array.shape), entries[name].describe_tried()),
                    )
                return False
        return True


class _Run:
    """A dispatched run of known shapes."""

    __slots__ = ("_entry", "_mark", "_run")

    def __init__(self, run: InFlight, entry: Entry, mark: Mark) -> None:
        self._run = run
        self._entry = entry
        self._mark = mark

    def result(self) -> Tensors:
        try:
            return self._run.result()
        finally:
            self._entry.end_run(self._mark)


class _FirstRun:
    """A dispatched run of shapes of which none has completed. They are known when it has."""

    __slots__ = ("_entry", "_form", "_known", "_mark", "_run", "_shapes")

    def __init__(
        self, run: InFlight, entry: Entry, mark: Mark, form: str, known: dict[Hashable, bool], shapes: Hashable
    ) -> None:
        self._run = run
        self._entry = entry
        self._mark = mark
        self._form = form
        self._known = known
        self._shapes = shapes

    def result(self) -> Tensors:
        try:
            outputs = self._run.result()
        except BaseException:
            self._entry.end_form(self._mark, self._form, completed=False)
            raise
        self._entry.end_form(self._mark, self._form, completed=True)
        if self._shapes in self._known:
            self._known[self._shapes] = True
        return outputs


def describe_form(signature: Signature, inputs: Tensors) -> str:
    """Return the form of a run: `signature 'serving_default' with x [4-7, 3], y [4-7]`.

    The signature decides the dtypes. The number of rows is a range between powers of two if the first dimension is
    free, because batches differ in it.
    """
    shapes = (f"{name} {_describe_shape(inputs[name].shape, signature)}" for name in sorted(inputs))
    return f"signature '{signature.name}' with {', '.join(shapes)}"


def _describe_shape(shape: tuple[int, ...], signature: Signature) -> str:
    if not shape or shape[0] < 2 or not signature.is_batchable:
        return str(list(shape))
    smallest = 1 << (shape[0].bit_length() - 1)
    return f"[{', '.join([f'{smallest}-{2 * smallest - 1}', *map(str, shape[1:])])}]"
