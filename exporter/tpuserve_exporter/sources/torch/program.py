"""torch.export programs of modules for given inputs, and the inputs of a program."""

import contextlib
import inspect
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from tpuserve_exporter.errors import BuilderFailed, CannotLower, OptionConflict, TrainingMode, reason_of
from tpuserve_exporter.models.jax_function import JaxInput
from tpuserve_exporter.sources.torch.tensors import dtype_name, find_dtype

# Number of rows during a trace. It is not 0 or 1, because torch treats these as fixed.
_ROWS = 3
# Part of torch's error for one row of a batch norm that uses the statistics of the batch.
_OF_BATCH_STATISTICS = "more than 1 value per channel when training"
# Steps between lengths during a trace. Patch sizes and strides divide the lengths.
_STEPS = (16, 8, 4, 2)
# Upper bounds from here on are those of torch's integers. Some releases write them in place of infinity.
_UNLIMITED = 1 << 40


class RowsFixed(Exception):
    """Raised if the module's code fixes the number of rows, so that a program works for one number only."""


@dataclass(slots=True)
class Module:
    """A module in eval mode with its inputs, which it takes by keyword or in order.

    `longest` is the largest sequence bucket, or None if every length must fit. `limit` is the model's own longest
    sequence, or None if it has no limit.
    """

    module: torch.nn.Module
    inputs: Mapping[str, JaxInput]
    longest: int | None = None
    limit: int | None = None
    _programs: dict[int | None, ExportedProgram] = field(default_factory=dict)

    def call(self, tensors: Mapping[str, torch.Tensor]) -> Any:  # noqa: ANN401 - whatever the module returns
        with torch.no_grad(), _without_fast_path():
            try:
                return self.module(*self._positional(tensors), **self._by_name(tensors))
            except ValueError as error:
                if _OF_BATCH_STATISTICS not in str(error):
                    raise
                raise TrainingMode(self._describe_untracked()) from error

    def _describe_untracked(self) -> str:
        found = [
            name for name, one in self.module.named_modules() if getattr(one, "track_running_stats", True) is False
        ]
        which = f"in {', '.join(found)} (track_running_stats=False)" if found else "and keeps no running statistics"
        return (
            f"the model normalizes by the statistics of the batch {which}, so that one row alone has no answer. Build "
            "it with track_running_stats=True, run training rows through it in train() to fill the statistics, and "
            "save it again"
        )

    def trace(self, rows: int | None = None) -> ExportedProgram:
        """Return a program for any number of rows, or for `rows`.

        A trace sees shapes and no values. Raises RowsFixed, OptionConflict, CannotLower, and BuilderFailed if the
        module fails for zeros and ones too.
        """
        if rows not in self._programs:
            self._programs[rows] = self._trace(rows)
        self._check_freedom(self._programs[rows], rows)
        return self._programs[rows]

    def state(self) -> dict[str, torch.Tensor]:
        """Return parameters and buffers by name. A tensor may have several names, of which a program reads one."""
        parameters = self.module.named_parameters(remove_duplicate=False)
        return dict(parameters) | dict(self.module.named_buffers(remove_duplicate=False))

    def returned(self) -> Any:  # noqa: ANN401 - whatever the module returns
        """Return placeholders for the outputs. Raises the errors of `trace` except RowsFixed."""
        try:
            return placeholders(self.trace())
        except RowsFixed:
            return placeholders(self.trace(_ROWS))

    def _trace(self, rows: int | None) -> ExportedProgram:
        tensors = _zeros(self.inputs, rows or _ROWS, self.longest or self.limit)
        free = {name: _free_dimensions(one, rows) for name, one in self.inputs.items()}
        shapes: Any = self._by_name(free) or self._positional(free)
        try:
            with _silent(), _without_fast_path():
                return torch.export.export(
                    self.module, self._positional(tensors), self._by_name(tensors), dynamic_shapes=shapes, strict=False
                )
        except Exception as error:  # torch raises many kinds of errors
            self._check_call(tensors)
            raise CannotLower(f"torch.export cannot trace the model's code: {_explain(error)}") from error

    def _check_call(self, zeros: Mapping[str, torch.Tensor]) -> None:
        """Raise BuilderFailed if the module does not run either. torch's errors are clearer then than in a trace.

        Ones are tried too, because a mask of zeros hides all, and a length of zero is invalid.
        """
        failures = list[Exception]()
        for tensors in (zeros, {name: torch.ones_like(value) for name, value in zeros.items()}):
            try:
                self.call(tensors)
            except Exception as error:  # the user's code
                failures.append(error)
            else:
                return
        inputs = ", ".join(f"{name}: {describe(one)}" for name, one in self.inputs.items())
        reason = f"{type(failures[0]).__name__}: {reason_of(failures[0])}"
        raise BuilderFailed(f"the model fails for {inputs}: {reason}") from failures[0]

    def _takes_names(self) -> bool:
        return self.inputs.keys() <= inspect.signature(self.module.forward).parameters.keys()

    def _positional(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        return () if self._takes_names() else tuple(values[name] for name in self.inputs)

    def _by_name(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: values[name] for name in self.inputs} if self._takes_names() else {}

    def _check_freedom(self, program: ExportedProgram, rows: int | None) -> None:
        """Raise RowsFixed or OptionConflict if torch fixed a dimension that --input leaves free."""
        for (name, one), shape in zip(
            self.inputs.items(), (spec.dims for spec in taken(program).values()), strict=True
        ):
            for axis, (wanted, got) in enumerate(zip(one.dims, shape, strict=True)):
                if isinstance(wanted, int) or isinstance(got, str) or (axis == 0 and rows is not None):
                    continue
                if axis == 0:
                    raise RowsFixed(f"the model's code fixes the rows of {name}")
                raise OptionConflict(
                    f"--input {name}: the model's code fixes the size of '{wanted}', so that it cannot be free. Set "
                    "it to a number"
                )


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Discard what torch prints about code that it cannot trace."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


@contextlib.contextmanager
def _without_fast_path() -> Iterator[None]:
    """Turn off torch's fused attention for inference, which training does not use.

    It makes nested tensors from a padding mask, which neither torch.export nor XLA can represent. The values at hidden
    positions are then zeros, and the outputs are cut to the longest row of a batch.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _zeros(inputs: Mapping[str, JaxInput], rows: int, longest: int | None) -> dict[str, torch.Tensor]:
    """Return zeros with `rows` rows for each input."""
    words = sorted({length for one in inputs.values() for length in one.lengths})
    sizes = dict(zip(words, _lengths(len(words), longest), strict=True))

    def size(axis: int, dim: int | str) -> int:
        return dim if isinstance(dim, int) else rows if axis == 0 else sizes[dim]

    return {
        name: torch.zeros([size(axis, dim) for axis, dim in enumerate(one.dims)], dtype=find_dtype(one.dtype))
        for name, one in inputs.items()
    }


def placeholders(program: ExportedProgram) -> Any:  # noqa: ANN401 - whatever the program returns
    """Return placeholders for a program's outputs, with the same structure and dtypes but without values."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    specs = [one for one in program.graph_signature.output_specs if one.kind is OutputKind.USER_OUTPUT]
    return pytree.tree_unflatten([values.get(one.arg.name) for one in specs], program.call_spec.out_spec)


def _lengths(count: int, longest: int | None) -> range:
    """Return different lengths, because torch treats equal sizes as one dimension.

    They are below `longest`, if possible. At the length of its table of positions, torch would fix a model's length.
    """
    step = next((one for one in _STEPS if longest is None or one * count < longest), 1)
    first = max(step, 2)
    return range(first, first + step * count, step)


def limits_of(program: ExportedProgram, inputs: Mapping[str, JaxInput]) -> dict[str, int]:
    """Return the largest sizes of free dimensions of `inputs`, which are the program's in order.

    torch.export derives them from the model's code, such as the length of a table that the code cuts.
    """
    limits: dict[str, int] = {}
    for one, value in zip(inputs.values(), _values(program).values(), strict=True):
        for axis in one.free_axes:
            symbol = getattr(getattr(value.shape[axis], "node", None), "expr", None)
            upper = program.range_constraints[symbol].upper if symbol in program.range_constraints else None
            if upper is not None and upper.is_Integer and upper < _UNLIMITED:
                name = str(one.dims[axis])
                limits[name] = min(int(upper), limits.get(name, int(upper)))
    return limits


def taken(program: ExportedProgram) -> dict[str, JaxInput]:
    """Return the inputs of a program in order, by argument name. Words stand for free sizes."""
    values = _values(program)
    rows = {str(value.shape[0]) for value in values.values() if value.ndim and not _is_fixed(value.shape[0])}
    return {name: _input(value, rows) for name, value in values.items()}


def _values(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Return placeholders for the inputs in order, by argument name."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    return {spec.arg.name: nodes[spec.arg.name].meta["val"] for spec in specs if not hasattr(spec.arg, "value")}


def _input(value: torch.Tensor, rows: set[str]) -> JaxInput:
    words = [int(size) if _is_fixed(size) else "rows" if str(size) in rows else str(size) for size in value.shape]
    return JaxInput(dtype_name(value.dtype), tuple(words))


def _is_fixed(size: Any) -> bool:  # noqa: ANN401 - an int or a torch.SymInt
    """Return whether the size has one value. A size that a module's code fixes may still be a symbol."""
    return not isinstance(size, torch.SymInt) or size.node.maybe_as_int() is not None


def describe(one: JaxInput) -> str:
    return f"{one.dtype}[{', '.join(map(str, one.dims))}]"


def _free_dimensions(one: JaxInput, rows: int | None) -> list[Any]:
    return [
        Dim.STATIC if isinstance(dim, int) or (axis == 0 and rows is not None) else Dim.AUTO
        for axis, dim in enumerate(one.dims)
    ]


def _explain(error: Exception) -> str:
    """Return the first line of torch's error, without its long explanation and this machine's paths."""
    reason = f"{type(error).__name__}: {reason_of(error)}"
    if "data-dependent" not in reason:
        return reason
    return f"{reason} Write code that depends on a tensor's values, such as `if x.sum() > 0`, with torch.where"
