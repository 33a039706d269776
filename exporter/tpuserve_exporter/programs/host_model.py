"""The host parts of a version's signatures: a SavedModel without weights in `assets.extra/tpuserve/host`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_exporter.programs.host_part import Half, HostPart
from tpuserve_formats.manifest.device import DeviceHost

if TYPE_CHECKING:
    import tensorflow as tf

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
