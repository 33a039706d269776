"""Finds content of Keras files that runs code or reads other files when Keras loads the model.

Keras's safe mode refuses most of it, but not in every version, and not in files of Keras 2. Such a file names functions
of TensorFlow for its layers to call, and the call runs while Keras 2 reads the file. Keras 2 also imports any module
that the file names. This module needs neither Keras nor TensorFlow.
"""

import builtins
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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


def find_unsafe_config(config: object, keras_2: bool = False, trusted: Sequence[str] = ()) -> Iterator[str]:
    """Yield what is unsafe in a model's configuration, such as `Lambda layer twice`, at any depth.

    `keras_2`: Keras 2 reads the file. It calls functions of TensorFlow, and imports modules, that the file names. The
    user has named the `trusted` modules.
    """
    if isinstance(config, dict):
        if found := _describe(config) or (describe_keras_2(config, trusted) if keras_2 else ""):
            yield found
            return
        yield from (f"the file {config[key]!r} as {key}" for key in _PATHS if isinstance(config.get(key), str))
        for value in config.values():
            yield from find_unsafe_config(value, keras_2, trusted)
    elif isinstance(config, list):
        for value in config:
            yield from find_unsafe_config(value, keras_2, trusted)


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


FUNCTIONS_FILE: Final = Path(__file__).with_name("tensor_functions.txt")

# Properties and methods of ragged and sparse tensors.
_MEMBERS: Final = frozenset(
    """
    bounding_shape dense_shape flat_values indices merge_dims nested_row_lengths nested_row_splits nested_value_rowids
    nrows row_lengths row_limits row_splits row_starts to_sparse to_tensor value_rowids values with_flat_values
    with_row_splits_dtype with_values
    """.split()  # noqa: SIM905 - readable
)
_CONSTRUCTORS: Final = re.compile(
    r"from_(nested_)?(value_rowids|row_splits|row_lengths|row_starts|row_limits)"
    r"|from_(uniform_row_length|tensor|sparse)"
)
# Modules with the classes and functions of models, under their public names and in the source.
_KERAS_2_PARTS: Final = re.compile(
    r"(tf_)?keras(\.src)?(\.(activations|applications|constraints|engine|feature_column|initializers|layers|losses|"
    r"metrics|mixed_precision|models|optimizers|premade_models|regularizers)(\.\w+)*)?|keras\.experimental"
)
_WITHOUT_FUNCTIONS: Final = re.compile(r"(tf_)?keras(\.src)?(\.(applications|engine|models)(\.\w+)*)?")
_INITIALIZERS: Final = "tensorflow.python.ops.init_ops_v2"
_VALUES: Final = frozenset({"__bytes__", "__ellipsis__", "__numpy__", "__tensor__", "__tuple__"})
_SPECS: Final = re.compile(r"tensorflow\.python\.(framework|ops\.ragged)\.\w+")


def describe_keras_2(config: Mapping[str, Any], trusted: Sequence[str] = ()) -> str:
    """Return what an object of a file calls or imports that is not a part of models; empty if it does not."""
    kind = config.get("class_name")
    inner = config.get("config")
    if found := _describe_call(str(kind), inner if isinstance(inner, Mapping) else {}):
        return found
    if "class_name" not in config and "spec_name" not in config:
        return ""
    return "" if config.get("module") in trusted else _describe_object(str(kind), config)


def _describe_call(kind: str, inner: Mapping[str, Any]) -> str:
    name = f"layer {inner.get('name', 'unnamed')}"
    match kind:
        case "TFOpLambda" | "SlicingOpLambda":
            return "" if is_tensor_function(inner.get("function")) else f"{name} calls {inner.get('function')}"
        case "ClassMethod":
            method = f"{inner.get('cls_symbol')}.{inner.get('method_name')}"
            made = inner.get("cls_symbol") == "RaggedTensor" and _CONSTRUCTORS.fullmatch(str(inner.get("method_name")))
            return "" if made else f"{name} calls {method}"
        case "InstanceMethod" | "InstanceProperty":
            return "" if inner.get("attr_name") in _MEMBERS else f"{name} uses {inner.get('attr_name')} of an object"
        case "TensorFlowOpLayer":
            return f"{name} calls an operation of TensorFlow"
        case _:
            return ""


def _describe_object(kind: str, config: Mapping[str, Any]) -> str:
    """Describe a class or function that Keras 2 would find by a name of a module, or by a name in its own modules."""
    module, name = config.get("module"), str(config.get("config") if kind == "function" else kind)
    names = [name, *(str(one) for key in ("registered_name", "spec_name") if (one := config.get(key)) is not None)]
    shown = f"{name} of {module}" if module is not None else name
    if kind == "__typespec__":
        return "" if _SPECS.fullmatch(str(module)) and str(config.get("spec_name")).endswith("Spec") else shown
    if kind in _VALUES:
        return ""
    if any("." in one for one in names):  # a name inside a module's imports, such as os.system
        return f"{shown}, which is not a part of models"
    if kind != "function" and not kind[:1].isupper() and ">" not in kind:  # a function that is called with the config
        return f"{shown}, which is not a class"
    return "" if module is None or _is_part(str(module), kind, names) else f"{shown}, which is not a part of models"


def _is_part(module: str, kind: str, names: list[str]) -> bool:
    if module == "builtins":  # Keras 2 writes it for functions, and imports the real one if Keras has no such function
        return kind == "function" and not any(hasattr(builtins, one) for one in names)
    if module == _INITIALIZERS:
        return kind != "function"
    return bool(_KERAS_2_PARTS.fullmatch(module)) and not (kind == "function" and _WITHOUT_FUNCTIONS.fullmatch(module))


def is_tensor_function(name: object) -> bool:
    """Return whether a function of TensorFlow's public API, such as `math.add`, only computes tensors from tensors."""
    return isinstance(name, str) and name.removeprefix("compat.v1.") in _tensor_functions()


@cache
def _tensor_functions() -> frozenset[str]:
    return read_functions(FUNCTIONS_FILE.read_text(encoding="utf-8"))


def read_functions(text: str) -> frozenset[str]:
    """Return the names in a list of functions. A line has a namespace, `-` for none, and names in it."""
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return frozenset(name if space == "-" else f"{space}.{name}" for space, *names in lines for name in names)
