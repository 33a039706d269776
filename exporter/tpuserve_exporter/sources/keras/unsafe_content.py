"""Finds content of Keras files that runs code or reads other files when Keras loads the model.

Keras's safe mode refuses most of it, but not in every version, and not in files of Keras 2. This module needs no Keras.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from tpuserve_exporter.sources.keras.keras_2_content import describe_keras_2

if TYPE_CHECKING:
    import h5py

# Layers that hold code, or that load a model of another framework or format.
_UNSAFE: Final = frozenset({"FlaxLayer", "JaxLayer", "Lambda", "TFSMLayer", "TorchModuleWrapper", "__lambda__"})
# Parts of Keras with the classes and functions of models. Others load files, download, or change settings.
_PARTS: Final = re.compile(
    r"keras(\.src)?(\.(_legacy|activations|applications|backend|constraints|dtype_policies|initializers|layers|losses|"
    r"metrics|mixed_precision|models|ops|optimizers|quantizers|random|regularizers)(\.\w+)*|\.engine(\.\w+)*)?"
)
_PATHS: Final = ("ckpt_to_load_from", "vocabulary", "vocabulary_file")


def find_unsafe_config(config: object, keras_2: bool = False) -> Iterator[str]:
    """Yield what is unsafe in a model's configuration, such as `Lambda layer twice`, at any depth.

    `keras_2`: Keras 2 reads the file. It calls functions of TensorFlow, and imports modules, that the file names.
    """
    if isinstance(config, dict):
        if found := _describe(config) or (describe_keras_2(config) if keras_2 else ""):
            yield found
            return
        yield from (f"the file {config[key]!r} as {key}" for key in _PATHS if isinstance(config.get(key), str))
        for value in config.values():
            yield from find_unsafe_config(value, keras_2)
    elif isinstance(config, list):
        for value in config:
            yield from find_unsafe_config(value, keras_2)


def _describe(config: dict[str, Any]) -> str:
    kind, module = config.get("class_name"), config.get("module")
    # Keras 2 uses the registered name if the module has no such class.
    for one in (kind, config.get("registered_name")):
        if isinstance(one, str) and one in _UNSAFE:
            inner = config.get("config")
            name = inner.get("name", "unnamed") if isinstance(inner, dict) else "unnamed"
            return f"{one.strip('_')} layer {name}"
    # Wrappers of cells and Lambda layers store code next to its type (residual_fn_type).
    if coded := [key for key, value in config.items() if key.endswith("_type") and value == "lambda"]:
        return f"code as {coded[0].removesuffix('_type')} of layer {config.get('name', 'unnamed')}"
    if (
        isinstance(kind, str)
        and isinstance(module, str)
        and module.startswith("keras")
        and not _PARTS.fullmatch(module)
    ):
        name = config.get("config") if kind == "function" else kind
        return f"{module}.{name}, which is not a part of models"
    return ""


def find_other_files(file: "h5py.File") -> Iterator[str]:
    """Yield the places in an HDF5 file that refer to other files: links, external data and virtual datasets."""
    import h5py

    seen, pending = set[int](), [("", file)]
    while pending:
        prefix, group = pending.pop()
        address = h5py.h5o.get_info(group.id).addr
        if address in seen:
            continue
        seen.add(address)
        for name in group:
            where, link = f"{prefix}{name}", group.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                yield f"{where}, a link to {link.filename}"
            elif isinstance(link, h5py.HardLink):
                item = group[name]
                if isinstance(item, h5py.Group):
                    pending.append((f"{where}/", item))
                elif isinstance(item, h5py.Dataset) and (item.external or item.is_virtual):
                    yield f"{where}, with data in another file"
