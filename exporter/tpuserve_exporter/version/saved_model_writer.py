"""The writer of a SavedModel that loads both in Python and in a session."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuserve_exporter.models.ragged import write_row_splits
from tpuserve_exporter.models.weights_check import named_variables
from tpuserve_exporter.signatures.served_signature import PREDICT, Call, DevicePart, ServedSignature

if TYPE_CHECKING:
    import tensorflow as tf

# Google's TPU inference converter finds the function for the device by this alias.
DEVICE_FUNCTION_ALIAS = "tpu_func"


def write_saved_model(path: Path, device: DevicePart, call: Call, signatures: Collection[ServedSignature]) -> None:
    """Write `signatures`, which all `call` the one `device` part, to the new directory `path`.

    Raises BuilderFailed if a signature cannot be traced. A tf.Module that holds a Keras 3 model loads only in Python,
    because a session does not find its variables by name. ExportArchive tracks variables and lookup tables directly.
    """
    import keras
    import tensorflow as tf

    wrapped = {signature.name: signature.wrap(call) for signature in signatures}
    archive = keras.export.ExportArchive()
    # The archive tracks a module that holds them. For a Keras model itself, it would write and load variables twice.
    module = tf.Module()
    module.tracked = _distinct([*device.trackables, *(one for f in wrapped.values() for one in f.trackables)])
    archive.track(module)
    traces = {name: function.trace() for name, function in wrapped.items()}
    for name, (function, _) in traces.items():
        archive.add_endpoint(name, function)
    # The order of the variables determines their names in the file. The archive itself would collect them as a set.
    archive.add_variable_collection("weights", _used(module, [graph for _, graph in traces.values()]))
    options = tf.saved_model.SaveOptions(function_aliases={DEVICE_FUNCTION_ALIAS: device.function})
    archive.write_out(str(path), options=options, verbose=False)
    _set_method_names(path, {signature.name: signature.method_name for signature in signatures})
    write_row_splits(path, {name: function.ragged for name, function in wrapped.items()})


def _used(module: "tf.Module", graphs: "Sequence[tf.types.experimental.ConcreteFunction]") -> "list[tf.Variable]":
    """Return the variables that the module tracks and the graphs use, in the module's order."""
    used = {id(variable) for graph in graphs for variable in graph.variables}
    return [variable for _, variable in named_variables([module]) if id(variable) in used]


def _distinct(trackables: list[Any]) -> list[Any]:
    return list({id(one): one for one in trackables}.values())


def _set_method_names(path: Path, method_names: Mapping[str, str]) -> None:
    """Set the signatures' method names in the file, because TensorFlow writes only predictions.

    TensorFlow's fingerprint depends on the file's content, so this recomputes it.
    """
    if set(method_names.values()) <= {PREDICT}:
        return
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel
    from tensorflow.python.saved_model import fingerprinting_utils

    file = path / "saved_model.pb"
    saved_model = SavedModel.FromString(file.read_bytes())
    for name, method_name in method_names.items():
        saved_model.meta_graphs[0].signature_def[name].method_name = method_name
    file.write_bytes(saved_model.SerializeToString(deterministic=True))
    fingerprinting_utils.write_fingerprint(str(path))
