"""Builds the model that a configuration of Keras 3 describes, and reads its values from the content of a `.keras` file.

Keras' own load_model would hold a large value four times: a random one, the array, and two copies in TensorFlow.
"""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuserve_exporter.models.layer_states import is_foreign, walk_layers
from tpuserve_exporter.options.export_options import ModelOptions
from tpuserve_exporter.sources.keras.custom_objects import import_objects
from tpuserve_exporter.sources.keras.hdf5_values import dtype_of, is_large, read_tensor
from tpuserve_exporter.sources.keras.unpacking import ASSETS, WEIGHTS

if TYPE_CHECKING:
    import keras

_UNSET = "TpuserveUnset"
# Initializers whose values a layer may keep.
_FIXED = frozenset({"Constant", "Identity", "IdentityInitializer", "Ones", "Zeros", "STFT", "STFTInitializer"})


def build_whole(config: Mapping[str, Any], options: ModelOptions, **custom: object) -> "keras.Model":
    """Build the model of a configuration, with fresh values. Raises errors of Keras and of the user's classes."""
    import keras
    from keras.src.saving.serialization_lib import ObjectSharingScope

    keras.backend.clear_session()
    # Keras empties the dictionary that it reads.
    own = copy.deepcopy({key: one for key, one in config.items() if key != "compile_config"})
    objects = {**import_objects(options.imports), **custom}
    with ObjectSharingScope():  # a layer with two parents stays one layer
        return keras.saving.deserialize_keras_object(own, objects, safe_mode=not options.unsafe)


def load_whole(config: Mapping[str, Any], folder: Path, options: ModelOptions) -> "keras.Model":
    """Build the model of an unpacked `.keras` file, and let its layers read their values. Raises errors of Keras."""
    from keras.src.saving import saving_lib

    model = build_whole(_without_random_values(config), options, **{_UNSET: _unset()})
    weights = _open_store(model, folder / WEIGHTS)
    files = saving_lib.DiskIOStore(str(folder / ASSETS), mode="r") if (folder / ASSETS).is_dir() else None
    failed, errors = set[int](), dict[int, Any]()
    try:
        saving_lib._load_state(
            model, weights, files, "", visited_saveables=set(), failed_saveables=failed, error_msgs=errors
        )
    finally:
        weights.close()
    if failed:
        saving_lib._raise_loading_failure(errors)
    return model


def _without_random_values(config: Any) -> Any:  # noqa: ANN401 - parsed JSON
    """Return the configuration with an initializer that takes no memory in place of each random one.

    Layers of Keras read all their values from the file. Those of the user may keep fresh ones.
    """
    if isinstance(config, list):
        return [_without_random_values(one) for one in config]
    if not isinstance(config, dict):
        return config
    module = config.get("module")
    if module == "keras.initializers" and config.get("class_name") not in _FIXED:
        return {"module": None, "class_name": _UNSET, "config": {}, "registered_name": _UNSET}
    if "class_name" in config and not str(module).startswith("keras"):
        return config
    return {key: _without_random_values(value) for key, value in config.items()}


def _unset() -> "type[keras.Initializer]":
    """Return an initializer whose memory the system allocates only when a value is written."""
    import keras
    import tensorflow as tf

    class TpuserveUnset(keras.Initializer):  # type: ignore[misc]  # Keras is untyped
        def __call__(self, shape: Sequence[int], dtype: Any = None, **_: object) -> tf.Tensor:  # noqa: ANN401 - as Keras
            return tf.raw_ops.Empty(shape=shape, dtype=keras.backend.standardize_dtype(dtype))

        def get_config(self) -> dict[str, Any]:
            return {}

    return TpuserveUnset


def _open_store(model: "keras.Model", path: Path) -> Any:  # noqa: ANN401 - a private class of Keras
    """Open the file for Keras' layers, which get large values as tensors. Layers of the user may need arrays."""
    from keras.src.saving.saving_lib import H5IOStore

    foreign = {path for path, layer in walk_layers(model) if is_foreign(layer, "load_own_variables")}

    class Store(H5IOStore):  # type: ignore[misc]  # Keras is untyped
        def get(self, path: str) -> "Store":
            self._is_foreign = path in foreign
            return super().get(path)  # type: ignore[no-any-return]

        def __getitem__(self, key: str) -> Any:  # noqa: ANN401 - an array or a tensor
            dataset = self._h5_entry_group[key]
            if self._is_foreign or not is_large(dataset):
                return super().__getitem__(key)
            return read_tensor(dataset, dtype_of(dataset))

    return Store(path)
