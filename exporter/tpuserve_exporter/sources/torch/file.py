"""Opens PyTorch files: weights (`.pt`, safetensors) for a builder's module, or an exported program (`.pt2`)."""

import copy
import inspect
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.export import ExportedProgram

from tpuserve_exporter.errors import BuilderFailed, OptionConflict, SourceUnreadable
from tpuserve_exporter.models.builder import builder_failure, check_arguments, describe_type, find_builder
from tpuserve_exporter.models.frameworks import quiet
from tpuserve_exporter.models.jax_function import JaxInput
from tpuserve_exporter.models.naming import check_names
from tpuserve_exporter.options.export_options import InputNaming, ModelOptions, SourceKind
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.sources.torch.program import Module
from tpuserve_exporter.sources.torch.program_file import read_program
from tpuserve_exporter.sources.torch.saved_program import SavedProgram
from tpuserve_exporter.sources.torch.serving import TorchReference, serve_torch
from tpuserve_exporter.sources.torch.tensors import Outputs, find_dtype
from tpuserve_exporter.sources.torch.weights_file import WeightsFile, read_weights
from tpuserve_exporter.sources.torch.weights_matching import describe_adapter, restore
from tpuserve_exporter.terms.provenance import LIVE, Origins
from tpuserve_exporter.terms.restore_report import RestoreReport


def open_source(source: Path, options: ModelOptions) -> OpenedSource:
    """Read, restore and lower the model. `source` is a file, or a directory of safetensors.

    Raises SourceUnreadable, UnsafeSource, OptionConflict, BuilderFailed, CannotLower, or CheckpointMismatch with a
    report of the mismatches.
    """
    if not source.exists():
        raise SourceUnreadable(f"there is no file or directory {source}")
    return _open_program(source, options) if source.suffix == ".pt2" else _open_weights(source, options)


def open_live_torch(model: object, name: str, options: ModelOptions) -> OpenedSource:
    """Open a module or program of this process, with weights on any device. Leave it unchanged."""
    if isinstance(model, ExportedProgram):
        program = SavedProgram(model, options.inputs)
        return serve_opened(
            "torch",
            name,
            program,
            Outputs.read(program.returned(), options.outputs),
            options,
            report=program.report(LIVE),
        )
    if not isinstance(model, torch.nn.Module):
        raise OptionConflict(f"cannot export {name}. From torch, pass an nn.Module or a program of torch.export")
    module = copy.deepcopy(model).cpu().eval()
    copied = Module(module, _inputs(module, options), options.sequences.longest)
    outputs = Outputs.read(copied.returned(), options.outputs)
    return serve_opened("torch", name, copied, outputs, options, values=dict.fromkeys(copied.state(), LIVE))


def _open_program(source: Path, options: ModelOptions) -> OpenedSource:
    if options.builder is not None:
        raise OptionConflict(f"{source.name} is a program and needs no model. Omit --model")
    program = SavedProgram(read_program(source, options.unsafe), options.inputs)
    outputs = Outputs.read(program.returned(), options.outputs)
    return serve_opened("torch", source.name, program, outputs, options, report=program.report())


def _open_weights(source: Path, options: ModelOptions) -> OpenedSource:
    file = read_weights(source, options.unsafe)
    module = _build(file, options)
    report = restore(module, file, options)
    model = Module(module.eval(), _inputs(module, options), options.sequences.longest)
    outputs = Outputs.read(model.returned(), options.outputs)
    return serve_opened("torch", source.name, model, outputs, options, file.step, report)


def serve_opened(
    kind: SourceKind,
    name: str,
    model: Module | SavedProgram,
    outputs: Outputs,
    options: ModelOptions,
    step: int | None = None,
    report: RestoreReport | None = None,
    values: Origins | None = None,
) -> OpenedSource:
    """Lower a model, and return it with torch as the reference. Raises OptionConflict, CannotLower, BuilderFailed."""
    with quiet():
        served = serve_torch(model, outputs, options)
    return OpenedSource(
        kind=kind,
        name=name,
        model=served.function,
        reference=TorchReference(model, outputs),
        compute_dtype=served.compute_dtype,
        step=step,
        builder=options.builder,
        restore=report,
        notes=served.notes,
        jax=served.source,
        values=values or {},
    )


def _build(file: WeightsFile, options: ModelOptions) -> torch.nn.Module:
    """Return the builder's module, or the pickled module if --unsafe allowed to read it."""
    if options.builder is None:
        if file.module is not None:
            return file.module
        raise OptionConflict(
            describe_adapter(file.name, (name for tensors in file.sets.values() for name in tensors))
            or f"{file.name} contains weights and no model. Name the function that builds it with --model "
            "pkg.module:function"
        )
    function = find_builder(options.builder)
    check_arguments(options.builder, function, options.builder_args)
    try:
        module = function(**options.builder_args)
    except Exception as error:  # the user's code
        raise builder_failure(options.builder, error) from error
    if not isinstance(module, torch.nn.Module):
        raise BuilderFailed(f"{options.builder} returned {describe_type(module)} instead of a torch.nn.Module")
    return module


def _inputs(module: torch.nn.Module, options: ModelOptions) -> dict[str, JaxInput]:
    """Return the inputs of --input. A torch module does not know its argument shapes."""
    arguments = ", ".join(inspect.signature(module.forward).parameters)
    if not options.inputs or any(naming.dims is None for naming in options.inputs):
        raise OptionConflict(
            "the inputs of a torch module are unknown. Describe each with --input 'name:dtype[batch,...]'. Its "
            f"forward takes ({arguments})"
        )
    return read_inputs(options.inputs)


def read_inputs(namings: Sequence[InputNaming]) -> dict[str, JaxInput]:
    """Return the inputs of --input options with dtype and shape. Raises OptionConflict."""
    check_names([naming.name for naming in namings])
    inputs: dict[str, JaxInput] = {}
    for naming in namings:
        find_dtype(str(naming.dtype))
        dims = naming.dims or ()
        named = [_word(dim) or f"{naming.name}_{axis}" for axis, dim in enumerate(dims)]
        inputs[naming.name] = JaxInput(str(naming.dtype), tuple(named))
    return inputs


def _word(dim: int | str) -> int | str | None:
    """Return a size or the name of a free dimension, or None for a text that is no name (`?`, `...`)."""
    return dim if isinstance(dim, int) or dim.isidentifier() else None
