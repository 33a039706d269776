"""A program from a `.pt2` file, which records its inputs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.models.jax_function import JaxInput
from tpuserve_exporter.models.naming import check_names
from tpuserve_exporter.options.export_options import InputNaming
from tpuserve_exporter.sources.torch.program import describe, placeholders, taken
from tpuserve_exporter.terms.provenance import TRAINED, Origin
from tpuserve_exporter.terms.restore_report import Entry, Fate, RestoreReport


class SavedProgram:
    """A saved program. `inputs` are in the program's order, with their names in the signature."""

    def __init__(self, program: ExportedProgram, namings: Sequence[InputNaming]) -> None:
        """Name the inputs. Raises OptionConflict if the `given` names, dtypes and sizes do not fit the program."""
        self._program = program
        self.limit = None
        self.inputs = _name(taken(program), namings)
        # Guards would refuse a single row for a program with a free number of rows that was exported with several.
        self._module = program.module(check_guards=False)

    def call(self, tensors: Mapping[str, torch.Tensor]) -> Any:  # noqa: ANN401 - whatever the program returns
        values = iter(tensors[name] for name in self.inputs)
        specs = [one for one in self._program.graph_signature.input_specs if one.kind is InputKind.USER_INPUT]
        leaves = [one.arg.value if hasattr(one.arg, "value") else next(values) for one in specs]
        args, kwargs = pytree.tree_unflatten(leaves, self._program.call_spec.in_spec)
        return self._module(*args, **kwargs)

    def trace(self, rows: int | None = None) -> ExportedProgram:
        return self._program

    def state(self) -> dict[str, torch.Tensor]:
        """Return parameters and buffers by name. Other constants become part of the lowered program."""
        tensors = {**self._program.constants, **self._program.state_dict}
        kinds = (InputKind.PARAMETER, InputKind.BUFFER)
        return {
            one.target: tensors[one.target] for one in self._program.graph_signature.input_specs if one.kind in kinds
        }

    def returned(self) -> Any:  # noqa: ANN401 - whatever the program returns
        return placeholders(self._program)

    def report(self, origin: Origin = TRAINED) -> RestoreReport:
        """Report every parameter and buffer, all of one origin, and operations of training in the program."""
        described = {
            name: f"{str(one.dtype).removeprefix('torch.')}{list(one.shape)}" for name, one in self.state().items()
        }
        entries = tuple(Entry(name, Fate.MATCHED, one, one, origin=origin) for name, one in described.items())
        return RestoreReport(entries, notes=(*self._left_of_training(), *self._fixed_rows()))

    def _fixed_rows(self) -> Iterator[str]:
        """Yield a note if every input has the same constant first size, as an export without dynamic_shapes gives."""
        rows = {one.dims[0] if one.dims else None for one in self.inputs.values()}
        if len(rows) == 1 and isinstance(size := rows.pop(), int):
            yield (
                f"the program takes exactly {size} row(s) in a request, and the server does not batch them. For a free "
                "number of rows, call torch.export with dynamic_shapes={'x': {0: torch.export.Dim.AUTO}} and with at "
                "least 2 rows in its example inputs"
            )

    def _left_of_training(self) -> Iterator[str]:
        norms = [node for node in self._program.graph.nodes if "batch_norm" in str(node.target)]
        if any(_argument(node, "training") for node in norms):
            yield (
                "batch normalization was left in training mode, so that it normalizes by the statistics of the "
                "batch. Call the model's eval() before torch.export"
            )
        if changed := ", ".join(self._program.graph_signature.buffers_to_mutate.values()):
            yield (
                f"the program changes its buffers {changed} when it is called. The served version does not change them"
            )


def _argument(node: Any, name: str) -> object:  # noqa: ANN401 - a node of torch.fx
    names = [one.name for one in node.target._schema.arguments]
    arguments = dict(zip(names, node.args, strict=False)) | node.kwargs
    return arguments.get(name)


def _name(known: Mapping[str, JaxInput], namings: Sequence[InputNaming]) -> dict[str, JaxInput]:
    """Apply the names and sizes from --input to the program's inputs, in order. Raises OptionConflict."""
    if namings and len(namings) != len(known):
        raise OptionConflict(f"there are {len(namings)} --input options, but the program has {len(known)} input(s)")
    check_names([naming.name for naming in namings])
    namings = namings or [InputNaming(name) for name in known]
    return {naming.name: _narrow(one, naming) for naming, one in zip(namings, known.values(), strict=True)}


def _narrow(known: JaxInput, naming: InputNaming) -> JaxInput:
    if naming.dtype is None or naming.dims is None:
        return known
    wanted = JaxInput(naming.dtype, naming.dims)
    fits = len(wanted.dims) == len(known.dims) and all(
        isinstance(have, str) or have == want for want, have in zip(wanted.dims, known.dims, strict=True)
    )
    if not fits or wanted.dtype != known.dtype:
        raise OptionConflict(
            f"--input describes {naming.name}: {describe(wanted)}, but the program takes {describe(known)}"
        )
    dims = tuple(want if isinstance(want, int) else have for want, have in zip(wanted.dims, known.dims, strict=True))
    return JaxInput(known.dtype, dims)
