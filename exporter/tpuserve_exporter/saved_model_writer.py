"""Writes served functions as a SavedModel that loads by Python and in a session alike."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpuserve_exporter.served_function import ServedFunction

# Google's TPU inference converter looks the part to run on the device up by this alias.
_DEVICE_FUNCTION_ALIAS = "tpu_func"


def write_saved_model(path: Path, functions: Mapping[str, ServedFunction]) -> None:
    """Write a signature for each of `functions` into `path`, which does not exist yet. Raises BuilderFailed.

    A tf.Module that holds a Keras 3 model loads in Python only (its variables get names no session finds);
    ExportArchive tracks the variables and lookup tables themselves.
    """
    import keras
    import tensorflow as tf

    archive = keras.export.ExportArchive()
    # Within a module, not themselves: of a Keras model tracked as such every variable is written twice, and loaded so.
    module = tf.Module()
    module.tracked = _distinct(functions)
    archive.track(module)
    traced = {name: function.trace()[0] for name, function in functions.items()}
    for name, function in traced.items():
        archive.add_endpoint(name, function)
    aliases = {_DEVICE_FUNCTION_ALIAS: next(iter(traced.values()))}
    archive.write_out(str(path), options=tf.saved_model.SaveOptions(function_aliases=aliases), verbose=False)


def _distinct(functions: Mapping[str, ServedFunction]) -> list[Any]:
    """What the functions track, each once."""
    return list({id(one): one for function in functions.values() for one in function.trackables}.values())
