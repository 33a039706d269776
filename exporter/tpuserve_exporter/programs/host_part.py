"""The host part of a signature: subgraphs that run before and after the device part, cut from the signature's graph.

The host parts of all signatures are in one SavedModel next to the programs.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuserve_exporter.errors import CannotLower
from tpuserve_exporter.signatures.served_signature import DevicePart, ServedSignature
from tpuserve_formats.counted import counted
from tpuserve_formats.manifest.device import DeviceHost

if TYPE_CHECKING:
    import tensorflow as tf

# The prefix of the signature's inputs among the inputs of `after`.
INPUT_PREFIX = "input/"


@dataclass(frozen=True, slots=True)
class Half:
    """A function that takes tensors in the order of `inputs` and returns tensors by name."""

    inputs: "Mapping[str, tf.TensorSpec]"
    call: "Callable[..., Mapping[str, tf.Tensor]]"


@dataclass(frozen=True, slots=True)
class HostPart:
    """Host code around a device part. `before` computes the part's inputs, and `after` the signature's outputs.

    `after` takes the part's outputs, and the signature's inputs as `input/NAME`. If `before` is None, `inputs` maps the
    signature's inputs to the part's inputs. If `after` is None, `outputs` maps the outputs. `trackables` are the tables
    and assets of both halves.
    """

    before: Half | None
    after: Half | None
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    trackables: tuple[Any, ...]


def split(signature: ServedSignature, device: DevicePart) -> HostPart:
    """Split the signature at its call of the device part. Raises CannotLower unless it calls the part exactly once."""
    return _Traced(signature, device).split()


class _Traced:
    """The signature as one graph, with placeholders instead of the device part's outputs."""

    def __init__(self, signature: ServedSignature, device: DevicePart) -> None:
        import tensorflow as tf

        self._name = signature.name
        self._device = device
        self._calls: list[Mapping[str, tf.Tensor]] = []
        self._made: dict[str, tf.Tensor] = {}
        self._outputs: dict[str, tf.Tensor] = {}
        self._function = signature.wrap(self._record)
        names = list(self._function.inputs)

        def run(*tensors: "tf.Tensor") -> "list[tf.Tensor]":
            self._outputs = dict(self._function.call(**dict(zip(names, tensors, strict=True))))
            return list(self._outputs.values())

        self._graph = tf.compat.v1.wrap_function(run, list(self._function.inputs.values()))
        self._inputs = dict(zip(names, self._graph.inputs, strict=False))

    def _record(self, **tensors: "tf.Tensor") -> "dict[str, tf.Tensor]":
        import tensorflow as tf

        self._calls.append(
            {name: tf.convert_to_tensor(tensors[name], spec.dtype) for name, spec in self._device.inputs.items()}
        )
        self._made = {
            name: tf.compat.v1.placeholder(spec.dtype, spec.shape) for name, spec in self._device.outputs.items()
        }
        return dict(self._made)

    def split(self) -> HostPart:
        call = self._only_call()
        inputs = _names_of(call, self._inputs)
        outputs = _names_of(self._outputs, self._made)
        checks = [one for one in self._graph.graph.get_operations() if one.type == "Assert"]
        made = {one.op for one in self._made.values()}
        late = [one for one in checks if made & _sources([one])]
        early = [one for one in checks if one not in late]
        straight = inputs is not None and not early and len(inputs) == len(self._inputs)
        return HostPart(
            before=None if straight else self._cut(self._inputs, call, early),
            after=None if outputs is not None and not late else self._cut(self._behind(late), self._outputs, late),
            inputs={name: part for part, name in (inputs or {}).items()} if straight else {},
            outputs=(outputs or {}) if not late else {},
            trackables=tuple(self._function.trackables),
        )

    def _only_call(self) -> "Mapping[str, tf.Tensor]":
        within = all(tensor.graph is self._graph.graph for call in self._calls for tensor in call.values())
        if len(self._calls) == 1 and within:
            return self._calls[0]
        how = "inside a loop or a branch" if not within else counted(len(self._calls), "time")
        raise CannotLower(
            f"{self._name} calls the model {how}, but the host part around a device part calls it exactly once"
        )

    def _behind(self, late: "list[tf.Operation]") -> "dict[str, tf.Tensor]":
        """Return the inputs of `after`: the device part's outputs, and the signature's inputs that it uses."""
        needed = _sources([*(one.op for one in self._outputs.values()), *late])
        again = {f"{INPUT_PREFIX}{name}": one for name, one in self._inputs.items() if one.op in needed}
        return {**self._made, **again}

    def _cut(
        self, feeds: "Mapping[str, tf.Tensor]", fetches: "Mapping[str, tf.Tensor]", checks: "list[tf.Operation]"
    ) -> Half:
        """Cut the subgraph between feeds and fetches. It also runs `checks`, so that it rejects the same inputs."""
        import tensorflow as tf

        pruned = self._graph.prune(list(feeds.values()), [*fetches.values(), *checks])
        results = list(fetches)

        def call(*tensors: "tf.Tensor") -> "dict[str, tf.Tensor]":
            # Fetched operations come last and return no value.
            return dict(zip(results, pruned(*tensors), strict=False))

        return Half({name: tf.TensorSpec(one.shape, one.dtype) for name, one in feeds.items()}, call)


def _names_of(tensors: "Mapping[str, tf.Tensor]", known: "Mapping[str, tf.Tensor]") -> dict[str, str] | None:
    """Return the name in `known` of each tensor, or None if one is missing."""
    names = {id(tensor): name for name, tensor in known.items()}
    if not all(id(tensor) in names for tensor in tensors.values()):
        return None
    return {name: names[id(tensor)] for name, tensor in tensors.items()}


def _sources(operations: "Iterable[tf.Operation]") -> "set[tf.Operation]":
    found, waiting = set(operations), list(operations)
    while waiting:
        one = waiting.pop()
        new = {*(tensor.op for tensor in one.inputs), *one.control_inputs} - found
        found |= new
        waiting += new
    return found


HOST_FOLDER = Path("assets.extra/tpuserve/host")


def write_host_model(version: Path, parts: Mapping[str, HostPart]) -> None:
    """Write the existing halves into `version`, with names from their signatures. Without halves, write no file."""
    import tensorflow as tf

    halves = {
        f"{name}/{which}": half
        for name, part in parts.items()
        for which, half in (("before", part.before), ("after", part.after))
        if half is not None
    }
    if not halves:
        return
    module = tf.Module()
    module.tracked = [one for part in parts.values() for one in part.trackables]
    functions = {name: _trace(half) for name, half in halves.items()}
    path = version / HOST_FOLDER
    tf.saved_model.save(module, str(path), signatures=functions)
    _name_inputs(path, halves)


def describe_host(name: str, part: HostPart) -> DeviceHost | None:
    """Return the manifest's entry for a signature's host part, or None if it has none."""
    if part.before is None and part.after is None:
        return None
    return DeviceHost(
        model=HOST_FOLDER.as_posix(),
        before=None if part.before is None else f"{name}/before",
        after=None if part.after is None else f"{name}/after",
    )


def _argument(index: int) -> str:
    return f"host_input_{index}"


def _trace(half: Half) -> "tf.types.experimental.ConcreteFunction":
    """Trace a half with numbered arguments. TensorFlow restricts their names, so `_name_inputs` renames them later."""
    import tensorflow as tf

    def run(**tensors: "tf.Tensor") -> "Mapping[str, tf.Tensor]":
        return half.call(*(tensors[_argument(index)] for index in range(len(half.inputs))))

    specs = {
        _argument(index): tf.TensorSpec(spec.shape, spec.dtype, name=_argument(index))
        for index, spec in enumerate(half.inputs.values())
    }
    return tf.function(run, autograph=False).get_concrete_function(**specs)


def _name_inputs(path: Path, halves: Mapping[str, Half]) -> None:
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel
    from tensorflow.python.saved_model import fingerprinting_utils

    file = path / "saved_model.pb"
    saved_model = SavedModel.FromString(file.read_bytes())
    for key, half in halves.items():
        inputs = saved_model.meta_graphs[0].signature_def[key].inputs
        for index, name in enumerate(half.inputs):
            inputs[name].CopyFrom(inputs[_argument(index)])
        for index in range(len(half.inputs)):
            del inputs[_argument(index)]
    file.write_bytes(saved_model.SerializeToString(deterministic=True))
    # The fingerprint depends on the file's content.
    fingerprinting_utils.write_fingerprint(str(path))
