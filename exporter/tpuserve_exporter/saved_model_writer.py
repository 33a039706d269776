"""Writes signatures as a SavedModel that loads by Python and in a session alike."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tpuserve_exporter.signatures.device_part import DevicePart
from tpuserve_exporter.signatures.served_signature import PREDICT, ServedSignature

# Google's TPU inference converter looks the part to run on the device up by this alias.
DEVICE_FUNCTION_ALIAS = "tpu_func"


def write_saved_model(path: Path, device: DevicePart, signatures: Collection[ServedSignature]) -> None:
    """Write `signatures`, which all call the one `device` part, into `path`, which does not exist yet.

    Raises BuilderFailed where one cannot be traced. A tf.Module that holds a Keras 3 model loads in Python only (its
    variables get names no session finds); ExportArchive tracks the variables and lookup tables themselves.
    """
    import keras
    import tensorflow as tf

    wrapped = {signature.name: signature.wrap(device.call) for signature in signatures}
    archive = keras.export.ExportArchive()
    # Within a module, not themselves: of a Keras model tracked as such every variable is written twice, and loaded so.
    module = tf.Module()
    module.tracked = _distinct([*device.trackables, *(one for f in wrapped.values() for one in f.trackables)])
    archive.track(module)
    for name, function in wrapped.items():
        archive.add_endpoint(name, function.trace()[0])
    options = tf.saved_model.SaveOptions(function_aliases={DEVICE_FUNCTION_ALIAS: device.function})
    archive.write_out(str(path), options=options, verbose=False)
    _set_method_names(path, {signature.name: signature.method_name for signature in signatures})


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
