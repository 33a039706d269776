"""PjrtServable: a version whose signatures run as device programs, with work of the CPU around them if needed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax

from tpuserve_formats.manifest.device import DeviceHost, DeviceSignature
from tpuserve_formats.manifest.tensor import ManifestTensor
from tpuserve_formats.manifest.version import ManifestSignature
from tpuserve_server.core.system.threads import run_in_background
from tpuserve_server.core.terms.errors import FailedPrecondition, ServingError
from tpuserve_server.core.terms.servable import InFlight, Servable
from tpuserve_server.core.terms.types import Signature, Tensors
from tpuserve_server.executors.pjrt.devices import BusyTime, DeviceHealth
from tpuserve_server.executors.pjrt.manifest import ProgramManifest, served_signature
from tpuserve_server.executors.pjrt.part import DevicePart, PartRun

# Prefixes of a signature's input names for the CPU's work after the device. TensorFlow's functions have no argument
# names with a slash.
_INPUT_PREFIXES = ("input/", "input_")


@dataclass(frozen=True, slots=True)
class SignatureProgram:
    """Program of one signature: its part, and the SavedModel with the CPU's work before and after the part."""

    signature: Signature
    entry: DeviceSignature
    part: DevicePart
    pad_values: Mapping[str, object]
    may_pad: bool
    host: Servable | None

    @classmethod
    def of(cls, name: str, manifest: ProgramManifest, part: DevicePart, host: Servable | None) -> "SignatureProgram":
        """Create the program of a signature from the manifest.

        Raises:
            FailedPrecondition: the host's part is missing, or does not match the device's part.
        """
        served, entry = manifest.signatures[name], manifest.device.signatures[name]
        if entry.host is not None and host is not None:
            _check_host(name, served, entry.host, part, host)
        # The part's own pad values are for inputs that the host produces.
        pad_values = _pad_values(part.entry.inputs)
        pad_values_by_alias = _pad_values(served.inputs)
        pad_values |= {
            to: pad_values_by_alias[alias] for alias, to in (entry.inputs).items() if alias in pad_values_by_alias
        }
        have_rows = all(tensor.has_rows for tensor in part.entry.outputs.values())
        may_pad = have_rows and manifest.has_independent_rows(name)
        return cls(served_signature(name, served, entry.method_name), entry, part, pad_values, may_pad, host)

    def before(self, inputs: Tensors) -> Tensors:
        """Return the part's inputs for the signature's inputs. Blocks during the CPU's work, if there is any."""
        name = self.entry.host.before if self.entry.host else None
        if name is None or self.host is None:
            return {to: inputs[alias] for alias, to in (self.entry.inputs).items()}
        made_by = self.host.signatures[name]
        return self.host.dispatch(
            name, {alias: inputs[alias] for alias in made_by.inputs}, tuple(made_by.outputs)
        ).result()

    def after(self, inputs: Tensors, outputs: Tensors, names: Sequence[str]) -> Tensors:
        """Return the signature's outputs `names` for the part's outputs. Blocks as `before` does."""
        name = self.entry.host.after if self.entry.host else None
        if name is None or self.host is None:
            mapped = self.entry.outputs
            made = {alias: outputs[mapped[alias]] for alias in names}
        else:
            offered = {f"{prefix}{alias}": array for alias, array in inputs.items() for prefix in _INPUT_PREFIXES}
            offered.update(outputs)
            needed = {alias: offered[alias] for alias in self.host.signatures[name].inputs}
            made = dict(self.host.dispatch(name, needed, names).result())
        specs = self.signature.outputs
        return {alias: array.astype(specs[alias].dtype, copy=False) for alias, array in made.items()}


@dataclass(frozen=True, slots=True)
class SavedModels:
    """SavedModels that run on the CPU: those around device programs, by directory, and the version's own.

    `whole` runs the signatures `without_program`. None: every signature has a device program.
    """

    around: Mapping[str, Servable]
    whole: Servable | None
    without_program: Sequence[str]

    @property
    def all(self) -> list[Servable]:
        """Every one of them."""
        return [*self.around.values(), *([] if self.whole is None else [self.whole])]


class PjrtServable:
    """Version on its devices. Any thread may dispatch; the fields do not change until `close`."""

    # A run waits for the device.
    never_blocks = False

    def __init__(
        self,
        programs: Mapping[str, SignatureProgram],
        weights: Sequence[jax.Array],
        saved_models: SavedModels,
        busy: BusyTime,
        health: DeviceHealth,
        *,
        device: str,
        max_in_flight: int,
        unrepeatable: str = "",
    ) -> None:
        """Take ownership of the weights and SavedModels until `close`. `max_in_flight` counts batches in transfer, too.

        `unrepeatable` is that of the device programs.

        Raises:
            FailedPrecondition: the version's SavedModel lacks a signature without a program.
        """
        self._programs = dict(programs)
        self._weights = list(weights)
        self._hosts = saved_models.all
        self._saved_model = whole = saved_models.whole
        self._busy = busy
        self._health = health
        self.signatures = {name: program.signature for name, program in programs.items()}
        self.device = device
        if whole is not None:
            without = saved_models.without_program
            if missing := [name for name in without if name not in whole.signatures]:
                raise FailedPrecondition(f"signature '{missing[0]}' has no device program, and the SavedModel lacks it")
            self.signatures.update({name: whole.signatures[name] for name in without})
            self.device += f"; {', '.join(without)} on {whole.device}"
        self.max_in_flight = max_in_flight
        self.unrepeatable = next(filter(None, (unrepeatable, *(host.unrepeatable for host in self._hosts))), "")

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        """Send the inputs to the device. Returns at once, or after the CPU's work before the device.

        Raises:
            InvalidArgument: there is no program for inputs of these shapes.
            DeviceLost: the run failed, and the device no longer works.
            ServingError: the device or the CPU's part refuses the inputs.
        """
        program = self._programs.get(signature_name)
        if program is None and self._saved_model is not None:
            return self._saved_model.dispatch(signature_name, inputs, output_names)
        assert program is not None
        of_part = program.before(inputs)
        self._busy.begin()
        try:
            run = program.part.start(of_part, program.pad_values, may_pad=program.may_pad)
        except ServingError as error:
            self._busy.end()
            raise self._health.explain(error) from error
        except BaseException:
            self._busy.end()
            raise
        return _Flight(program, inputs, tuple(output_names), run, self._busy.end, self._health)

    def close(self) -> None:
        """Free the device's memory. No run may be in flight."""
        self._programs.clear()
        run_in_background(self._delete, "unload-pjrt")

    def _delete(self) -> None:
        for weight in self._weights:
            weight.delete()
        self._weights.clear()
        for host in self._hosts:
            host.close()


@dataclass(frozen=True, slots=True)
class _Flight:
    """Run on the device. It keeps `inputs` until its end, because the device may read them in place."""

    program: SignatureProgram
    inputs: Tensors
    output_names: Sequence[str]
    run: PartRun
    ended: Callable[[], None]
    health: DeviceHealth

    def result(self) -> Tensors:
        try:
            outputs = self.run.result()
        except ServingError as error:
            raise self.health.explain(error) from error
        finally:
            self.ended()
        return self.program.after(self.inputs, outputs, self.output_names)


def _pad_values(inputs: Mapping[str, ManifestTensor]) -> dict[str, object]:
    return {name: tensor.pad_value for name, tensor in inputs.items() if tensor.pad_value is not None}


def _check_host(name: str, served: ManifestSignature, entry: DeviceHost, part: DevicePart, host: Servable) -> None:
    prefixed = {f"{prefix}{alias}" for alias in served.inputs for prefix in _INPUT_PREFIXES}
    ends = (
        (entry.before, set(served.inputs), set(part.entry.inputs)),
        (entry.after, {*part.entry.outputs, *prefixed}, set(served.outputs)),
    )
    for function, offered, needed in ends:
        if function is None:
            continue
        found = host.signatures.get(function)
        if found is None or not offered.issuperset(found.inputs) or not needed.issubset(found.outputs):
            raise FailedPrecondition(
                f"'{function}' in {entry.model} does not match the host part of signature '{name}'"
            )
