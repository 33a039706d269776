"""Writes signatures as a SavedModel that loads by Python and in a session alike."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuserve_exporter.models.ragged_signatures import write_row_splits
from tpuserve_exporter.models.weights_check import named_variables
from tpuserve_exporter.signatures.device_part import Call, DevicePart
from tpuserve_exporter.signatures.served_signature import PREDICT, ServedSignature

if TYPE_CHECKING:
    import tensorflow as tf

# Google's TPU inference converter looks the part to run on the device up by this alias.
DEVICE_FUNCTION_ALIAS = "tpu_func"


def write_saved_model(path: Path, device: DevicePart, call: Call, signatures: Collection[ServedSignature]) -> None:
    """Write `signatures`, which all `call` the one `device` part, into `path`, which does not exist yet.

    Raises BuilderFailed where one cannot be traced. A tf.Module that holds a Keras 3 model loads in Python only (its
    variables get names no session finds); ExportArchive tracks the variables and lookup tables themselves.
    """
    import keras
    import tensorflow as tf

    wrapped = {signature.name: signature.wrap(call) for signature in signatures}
    archive = keras.export.ExportArchive()
    # Within a module, not themselves: of a Keras model tracked as such every variable is written twice, and loaded so.
    module = tf.Module()
    module.tracked = _distinct([*device.trackables, *(one for f in wrapped.values() for one in f.trackables)])
    archive.track(module)
    traces = {name: function.trace() for name, function in wrapped.items()}
    for name, (function, _) in traces.items():
        archive.add_endpoint(name, function)
    # Before the archive finds them itself, as a set: in another order each time, which is their names in the file.
    archive.add_variable_collection("weights", _used(module, [graph for _, graph in traces.values()]))
    options = tf.saved_model.SaveOptions(function_aliases={DEVICE_FUNCTION_ALIAS: device.function})
    archive.write_out(str(path), options=options, verbose=False)
    _set_method_names(path, {signature.name: signature.method_name for signature in signatures})
    write_row_splits(path, {name: function.ragged for name, function in wrapped.items()})


def _used(module: "tf.Module", graphs: "Sequence[tf.types.experimental.ConcreteFunction]") -> "list[tf.Variable]":
    """The variables that the module tracks and the graphs use, in the module's order."""
    used = {id(variable) for graph in graphs for variable in graph.variables}
    return [variable for _, variable in named_variables([module]) if id(variable) in used]


def _distinct(trackables: list[Any]) -> list[Any]:
    """Each once, in their order."""
    return list({id(one): one for one in trackables}.values())


def _set_method_names(path: Path, method_names: Mapping[str, str]) -> None:
    """TensorFlow calls every signature a prediction, and offers no way to say otherwise.

    The fingerprint is of the file's content, so it is made anew.
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
