"""Runs a version's signatures by its device programs: host part, padding to a bucket, program, cut, host part.

The programs run on this machine's CPU, with the weights from their file, as PJRT runs them.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpuserve_exporter.errors import ParityFailed, SamplesUnfit, reason_of
from tpuserve_exporter.options.export_options import PadValue
from tpuserve_exporter.programs.host_part import INPUT_PREFIX
from tpuserve_exporter.programs.lowering import compile_program, load_program, round_products
from tpuserve_exporter.programs.weights_file import map_weights, numpy_dtype
from tpuserve_exporter.terms.signature import Array, Signature, Tensors, TensorSpec
from tpuserve_exporter.version.loaded_model import SessionModel
from tpuserve_formats.manifest.device import DevicePartEntry, DeviceProgram, DeviceSignature, ManifestDevice


class ProgramModel:
    """The programs of a version with shared weights. The first run of a program compiles it."""

    def __init__(self, version: Path, device: ManifestDevice, *, in_bfloat16: bool = False) -> None:
        """Map the weights. With `in_bfloat16`, products round their operands to bfloat16, as on a TPU."""
        self._in_bfloat16 = in_bfloat16
        self._version = version
        self._weights = map_weights(version / device.weights)
        self._compiled: dict[str, Callable[..., Sequence[Any]]] = {}
        self._taken: dict[str, Sequence[Any]] = {}

    def run(self, part: DevicePartEntry, program: DeviceProgram, inputs: Tensors) -> Tensors:
        """Return the part's outputs by name, in its dtypes. Inputs must have the program's exact shapes.

        Raises ParityFailed if the program does not run.
        """
        try:
            run = self._compile(program)
            dtypes = [aval.dtype for aval in self._taken[program.file]]
            ordered: list[Array] = [inputs[name] for name in part.inputs] + [
                self._weights[name] for name in part.weights
            ]
            arguments = [value.astype(dtype, copy=False) for value, dtype in zip(ordered, dtypes, strict=True)]
            results = [np.asarray(one) for one in run(*arguments)]
        except Exception as error:  # JAX raises many kinds of errors for unsupported programs
            raise ParityFailed(
                f"{program.file} does not run on this machine's CPU: {type(error).__name__}: {reason_of(error)[:300]}"
            ) from error
        return {
            name: result.astype(numpy_dtype(tensor.dtype), copy=False)
            for (name, tensor), result in zip(part.outputs.items(), results, strict=True)
        }

    def _compile(self, program: DeviceProgram) -> Callable[..., Sequence[Any]]:
        if program.file not in self._compiled:
            loaded = load_program((self._version / program.file).read_bytes())
            if self._in_bfloat16:
                loaded = round_products(loaded)
            self._taken[program.file] = loaded.in_avals
            self._compiled[program.file] = compile_program(loaded)
        return self._compiled[program.file]


def pad_sequence(name: str, spec: TensorSpec, value: Array, bucket: int, pad_value: PadValue | None) -> Array:
    """Pad each free dimension at its end with `said`, by default zero or an empty string. Raises SamplesUnfit."""
    shape = tuple(bucket if axis in spec.free_axes else size for axis, size in enumerate(value.shape))
    if spec.dtype == "string":
        padding: object = pad_value.encode() if isinstance(pad_value, str) else b""
        fits = pad_value is None or isinstance(pad_value, str)
    else:
        padding = pad_value or 0
        fits = not isinstance(pad_value, str) and _fits(pad_value or 0, value.dtype)
    if not fits:
        raise SamplesUnfit(f"cannot pad input {name!r} ({spec}) with {pad_value!r}")
    padded = np.full(shape, padding, value.dtype)
    padded[tuple(slice(size) for size in value.shape)] = value
    return padded


def _fits(value: float, dtype: "np.dtype[np.generic]") -> bool:
    """Return whether an integer dtype holds the value exactly. Floating-point dtypes may round."""
    if dtype.kind not in "biu":
        return True
    return float(value).is_integer() and bool(np.asarray(int(value)).astype(dtype) == value)


class ProgramAnswers:
    """Answers of the programs for one sequence length, or for no sequences if `length` is None.

    `host` has the host parts, or is None if no signature has one.
    """

    def __init__(
        self, model: ProgramModel, device: ManifestDevice, length: int | None, host: SessionModel | None
    ) -> None:
        self._model = model
        self._device = device
        self._length = length
        self._host = host

    def has(self, signature: Signature) -> bool:
        """Return whether the signature has programs of this length."""
        return signature.name in self._device.signatures and bool(self._programs(signature))

    def takes(self, signature: Signature, inputs: Tensors) -> bool:
        """Return whether the inputs fit the length of its programs."""
        if self._length is None:
            return True
        return _longest(self._part(signature), self._prepare(signature, inputs)) <= self._length

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        """Return the outputs by name. Raises ParityFailed if a program fails, SamplesUnfit if padding does."""
        entry, part = self._device.signatures[signature.name], self._part(signature)
        prepared = self._prepare(signature, inputs)
        program = self._choose(signature, prepared)
        outputs = self._model.run(
            part, program, {name: self._pad(part, name, prepared[name], program) for name in prepared}
        )
        rows = None if program.batch_size is None else _count_rows(prepared)
        longest = _longest(part, prepared)
        cut = {
            name: _cut(part.outputs[name].free_axes, value, rows, self._length, longest)
            for name, value in outputs.items()
        }
        return self._finish(entry, inputs, cut)

    def _part(self, signature: Signature) -> DevicePartEntry:
        return self._device.parts[self._device.signatures[signature.name].part]

    def _programs(self, signature: Signature) -> list[DeviceProgram]:
        return [one for one in self._part(signature).programs if one.sequence_length == self._length]

    def _prepare(self, signature: Signature, inputs: Tensors) -> Tensors:
        """Return the part's inputs, in its order."""
        entry, part = self._device.signatures[signature.name], self._part(signature)
        if entry.host is None or entry.host.before is None:
            mapped = {entry.inputs[name]: value for name, value in inputs.items()}
        else:
            mapped = dict(self._run_host(entry.host.before, inputs))
        return {name: mapped[name] for name in part.inputs}

    def _finish(self, entry: DeviceSignature, inputs: Tensors, outputs: Tensors) -> Tensors:
        if entry.host is None or entry.host.after is None:
            return {name: outputs[made] for name, made in entry.outputs.items()}
        return self._run_host(
            entry.host.after, {**outputs, **{f"{INPUT_PREFIX}{name}": inputs[name] for name in inputs}}
        )

    def _run_host(self, key: str, values: Tensors) -> Tensors:
        assert self._host is not None, "a version whose signatures have host parts needs a host model"
        half = self._host.signatures[key]
        return self._host.run(half, {name: values[name] for name in half.inputs})

    def _choose(self, signature: Signature, prepared: Tensors) -> DeviceProgram:
        programs = self._programs(signature)
        if programs[0].batch_size is None:
            return programs[0]
        rows = _count_rows(prepared)
        return next(one for one in programs if one.batch_size is not None and one.batch_size >= rows)

    def _pad(self, part: DevicePartEntry, name: str, value: Array, program: DeviceProgram) -> Array:
        tensor = part.inputs[name]
        if self._length is not None:
            value = pad_sequence(name, TensorSpec(tensor.dtype, tensor.shape), value, self._length, tensor.pad_value)
        if program.batch_size is None:
            return value
        # Servers also pad with a real row, because a model may divide by its norm.
        return np.concatenate([value, np.repeat(value[-1:], program.batch_size - len(value), axis=0)])


def list_answers(
    model: ProgramModel, device: ManifestDevice, host: SessionModel | None
) -> Iterator[tuple[str, ProgramAnswers]]:
    """Yield the programs' answers for each sequence length, with the name of the length for the comparison."""
    lengths = {program.sequence_length for part in device.parts.values() for program in part.programs}
    for length in sorted(lengths, key=lambda one: one or 0):
        name = "program" if length is None else f"program of length {length}"
        yield name, ProgramAnswers(model, device, length, host)


def _longest(part: DevicePartEntry, prepared: Tensors) -> int:
    sizes = ((prepared[name], tensor.free_axes) for name, tensor in part.inputs.items())
    return max((value.shape[axis] for value, axes in sizes for axis in axes), default=0)


def _count_rows(inputs: Tensors) -> int:
    return len(next(iter(inputs.values())))


def _cut(axes: tuple[int, ...], value: Array, rows: int | None, padded: int | None, longest: int) -> Array:
    """Cut an output to the given rows, and cut its free dimensions of the padded length to the given length."""
    ends = [longest if axis in axes and size == padded else None for axis, size in enumerate(value.shape)]
    return value[tuple(map(slice, [rows, *ends[1:]] if rows is not None else ends))]
