"""A version's signatures as its device programs answer them: padded to a bucket's shapes, and cut again."""

from collections.abc import Iterator, Mapping

import numpy as np

from tpuserve_exporter.checks.sequence_padding import pad_sequence
from tpuserve_exporter.options.export_options import PadValue
from tpuserve_exporter.programs.program_model import ProgramModel
from tpuserve_exporter.signature import Array, Signature, Tensors
from tpuserve_exporter.version.manifest_device import DevicePartEntry, DeviceProgram, ManifestDevice


class ProgramAnswers:
    """Answers by the programs for one length of sequences, None where a part has none."""

    def __init__(
        self, model: ProgramModel, device: ManifestDevice, length: int | None, pad_values: Mapping[str, PadValue]
    ) -> None:
        self._model = model
        self._device = device
        self._length = length
        self._pad_values = pad_values

    def takes(self, signature: Signature, inputs: Tensors) -> bool:
        """Whether there are programs of this length for the signature, and the inputs are no longer."""
        if signature.name not in self._device.signatures or not self._programs(signature):
            return False
        return self._length is None or self._longest(signature, inputs) <= self._length

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        """Outputs by name. Raises ParityFailed where a program does not run, SamplesUnfit for what cannot be padded."""
        entry = self._device.signatures[signature.name]
        part = self._device.parts[entry.part]
        program = self._choose(signature, inputs)
        padded = {entry.inputs[name]: self._pad(signature, name, inputs[name], program) for name in signature.inputs}
        outputs = self._model.run(part, program, padded)
        longest = self._longest(signature, inputs)
        rows = None if program.batch_size is None else _count_rows(inputs)
        return {
            name: _cut(signature.outputs[name].free_axes, outputs[made], rows, self._length, longest)
            for name, made in entry.outputs.items()
        }

    def _part(self, signature: Signature) -> DevicePartEntry:
        return self._device.parts[self._device.signatures[signature.name].part]

    def _programs(self, signature: Signature) -> list[DeviceProgram]:
        return [one for one in self._part(signature).programs if one.sequence_length == self._length]

    def _choose(self, signature: Signature, inputs: Tensors) -> DeviceProgram:
        """The smallest that the rows fit into."""
        programs = self._programs(signature)
        if programs[0].batch_size is None:
            return programs[0]
        rows = _count_rows(inputs)
        return next(one for one in programs if one.batch_size is not None and one.batch_size >= rows)

    def _longest(self, signature: Signature, inputs: Tensors) -> int:
        sizes = ((inputs[name], spec.free_axes) for name, spec in signature.inputs.items())
        return max((value.shape[axis] for value, axes in sizes for axis in axes), default=0)

    def _pad(self, signature: Signature, name: str, value: Array, program: DeviceProgram) -> Array:
        if self._length is not None:
            value = pad_sequence(name, signature.inputs[name], value, self._length, self._pad_values.get(name))
        if program.batch_size is None:
            return value
        # As servers do: a real row, because a model may divide by its norm.
        return np.concatenate([value, np.repeat(value[-1:], program.batch_size - len(value), axis=0)])


def list_answers(
    model: ProgramModel, device: ManifestDevice, pad_values: Mapping[str, PadValue]
) -> Iterator[tuple[str, ProgramAnswers]]:
    """One for each length of sequences that there are programs for, by what the comparison calls it."""
    lengths = {program.sequence_length for part in device.parts.values() for program in part.programs}
    for length in sorted(lengths, key=lambda one: one or 0):
        name = "program" if length is None else f"program of length {length}"
        yield name, ProgramAnswers(model, device, length, pad_values)


def _count_rows(inputs: Tensors) -> int:
    return len(next(iter(inputs.values())))


def _cut(axes: tuple[int, ...], value: Array, rows: int | None, padded: int | None, longest: int) -> Array:
    """To the rows that came; and in free dimensions of the padded length to the length that came."""
    ends = [longest if axis in axes and size == padded else None for axis, size in enumerate(value.shape)]
    return value[tuple(map(slice, [rows, *ends[1:]] if rows is not None else ends))]
