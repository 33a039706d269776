"""Lane: the batching rules and state of one signature."""

from collections.abc import Hashable, Sequence

from tpuserve_server.core.batching.batch_plan import BatchPlan, RunCost
from tpuserve_server.core.batching.options import BatchingMode, BatchingOptions, PaddingPolicy
from tpuserve_server.core.batching.regroup import LEAST_RUN_S, Regroup
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.cost_model import CostModel
from tpuserve_server.core.deadline import Deadline
from tpuserve_server.core.padding import choose_bucket
from tpuserve_server.core.types import Signature

# Order of a request without a deadline, or with a late one, in seconds after its arrival. Requests with earlier
# deadlines overtake it until then, so that it waits, but not for ever.
_PATIENCE_S = 1.0
# Costs are looked up again after this many batches.
_BATCHES_A_LOOK = 16
# Without this limit, requests of many lengths would fill the memory.
_MOST_RUNS = 4096


class Work:
    """Expected seconds on the device of all waiting batches of one priority."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        """Start without batches."""
        self.seconds = 0.0


class Lane:
    """One signature's rules, for tasks of one priority. `enqueued` counts its waiting batches of all keys."""

    __slots__ = (
        "_is_greedy",
        "_mean_s",
        "_objective_s",
        "_runs_s",
        "_uses_left",
        "buckets",
        "enqueued",
        "free_rows",
        "has_equal_rows",
        "has_objective",
        "latest_run_s",
        "least_bucket",
        "max_rows",
        "max_task_rows",
        "pads",
        "plan",
        "regroup",
        "sequences",
        "splits",
        "timeout_s",
        "work",
    )

    def __init__(
        self, signature: Signature, options: BatchingOptions | None, costs: CostModel, work: Work | None = None
    ) -> None:
        """Run every request in a separate batch if there are no `options`. All lanes of a priority share `work`."""
        self.work = Work() if work is None else work
        self.max_task_rows = options.max_batch_size if options else 1
        self.max_rows = options.max_rows if options else 1
        self.timeout_s = options.timeout_s if options else 0.0
        self.splits = options is not None and options.splits
        self.pads = options is not None and options.pad_variable_length_inputs
        self.sequences = options.sequences if options else None
        shapes = [spec.shape for spec in signature.inputs.values()]
        # A signature with batching has no input of unknown rank.
        self.free_rows = any(shape is not None and None in shape[1:] for shape in shapes)
        # Whether a row takes the same time as any other. Strings differ in length, and free dimensions in size.
        texts = any(spec.dtype == object for spec in signature.inputs.values())
        self.has_equal_rows = options is not None and not texts and not (self.free_rows and self.sequences is None)
        objective = None if options is None else options.objective
        self.has_objective = objective is not None
        self._objective_s = _PATIENCE_S if objective is None else objective.latency_s
        self.enqueued = 0
        # Expected seconds of the latest whole batch that has left.
        self.latest_run_s = 0.0
        # Expected seconds by rows and lengths, for this many batches.
        self._runs_s: dict[tuple[int, tuple[int, ...]], float] = {}
        self._uses_left = _BATCHES_A_LOOK
        # Only batches above this size leave a choice of how many rows to run.
        self.least_bucket = options.buckets[0] if options and options.buckets else self.max_rows
        self.buckets = options.buckets if options else ()
        self._mean_s = _mean_costs(signature.name, costs)
        self.plan = None if options is None else _make_plan(options, self._mean_s)
        # Set once a batch has taken long enough to make a short wait worthwhile.
        self.regroup: Regroup | None = None
        self._is_greedy = options is not None and options.mode is BatchingMode.GREEDY

    def key(self, task: Task) -> Hashable:
        """Return the key of a task. Tasks with the same key may share batches.

        The key of a task that runs alone is its signature's name.

        Raises:
            InvalidArgument: a sequence is longer than the largest bucket, or lengths that must be equal differ.
        """
        if not task.shareable:
            return task.signature_name
        if not self.free_rows:
            return (task.signature_name, task.output_names)
        if self.sequences is not None:
            task.lengths = self.sequences.padded_lengths(task.inputs)
            return (task.signature_name, task.output_names, task.lengths)
        arrays = task.inputs.values()
        # Rows without elements have no value to pad with. Parts of one request would each be padded differently.
        if self.pads and task.rows <= self.max_rows and all(array.size for array in arrays):
            return (task.signature_name, task.output_names, "padded")
        return (task.signature_name, task.output_names, *(array.shape[1:] for array in arrays))

    def order_s(self, now_s: float, deadline: Deadline) -> float:
        """Return the time by which a task that arrives now is ordered.

        This is its deadline, or the end of its patience if that is earlier. With an objective, tasks keep their order
        of arrival.
        """
        order_s = now_s + self._objective_s
        return order_s if self.has_objective or order_s < deadline.at_s else deadline.at_s

    def run_s(self, rows: int, lengths: tuple[int, ...]) -> float:
        """Return the expected seconds of batches that hold `rows` rows, or 0 if they are unknown."""
        key = (rows, lengths)
        run_s = self._runs_s.get(key)
        if run_s is None:
            if len(self._runs_s) >= _MOST_RUNS:
                self._runs_s.clear()
            run_s = self._runs_s[key] = self._look_up_s(rows, lengths)
        return run_s

    def left(self, run_s: float) -> None:
        """Record that a whole batch has left that should run for `run_s`. Costs are looked up again now and then."""
        self.latest_run_s = run_s
        self._uses_left -= 1
        if not self._uses_left:
            self._uses_left = _BATCHES_A_LOOK
            self._runs_s.clear()

    def _look_up_s(self, rows: int, lengths: tuple[int, ...]) -> float:
        if rows <= self.max_rows:
            return self._mean_s(choose_bucket(rows, self.buckets), lengths) or 0.0
        full, last = divmod(rows, self.max_rows)
        return full * self.run_s(self.max_rows, lengths) + (self.run_s(last, lengths) if last else 0.0)

    @property
    def waits(self) -> bool:
        """Whether a batch may have to wait while the device is free."""
        return self.timeout_s > 0 or self.regroup is not None

    def completed(self, tasks: Sequence[Task], run_s: float, now_s: float) -> None:
        """Record a batch that was answered, because its callers may send again soon."""
        if not self._is_greedy or not tasks[0].shareable:
            return
        rows = sum(task.rows for task in tasks)
        if self.regroup is None:
            # The mean decides, so that a single slow run of a light model does not start regrouping.
            if (self._cost_s(rows) or 0.0) < LEAST_RUN_S:
                return
            self.regroup = Regroup(self._cost_s, self.max_rows)
        self.regroup.completed(rows, run_s, now_s)

    def hurry(self) -> None:
        """Stop all waiting, from now on."""
        self.timeout_s = 0.0
        self.regroup, self._is_greedy = None, False

    def _cost_s(self, rows: int) -> float | None:
        """Return the mean seconds of a batch without padded lengths. Padded ones have other costs and never regroup."""
        return self._mean_s(choose_bucket(rows, self.buckets), ())

    def may_cut(self, task: Task) -> bool:
        """Return whether a waiting task may run in parts.

        If rows are padded to the shape of others, only a task that is already a part may be cut again. Parts of a whole
        request would be padded differently.
        """
        return self.splits and task.shareable and (not self.pads or task.split_request is not None)


def _mean_costs(signature_name: str, costs: CostModel) -> RunCost:
    def mean_s(rows: int, lengths: tuple[int, ...]) -> float | None:
        cost = costs.cost(signature_name, rows, lengths)
        return None if cost is None else cost.mean_s

    return mean_s


def _make_plan(options: BatchingOptions, mean_s: RunCost) -> BatchPlan | None:
    """Return the plan, or None if there is no choice of sizes or rows."""
    if len(options.buckets) < 2 or options.padding_policy is PaddingPolicy.PAD_UP:
        return None
    return BatchPlan(options.buckets, options.padding_policy, mean_s)
