"""Finds content of Keras 2 files that calls functions which are not parts of models.

A file of Keras 2 names functions of TensorFlow for its layers to call, and the call runs while Keras 2 reads the file.
Keras 2 also imports any module that the file names. This module needs neither Keras nor TensorFlow.
"""

import builtins
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

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
_PARTS: Final = re.compile(
    r"(tf_)?keras(\.src)?(\.(activations|applications|constraints|engine|feature_column|initializers|layers|losses|"
    r"metrics|mixed_precision|models|optimizers|premade_models|regularizers)(\.\w+)*)?|keras\.experimental"
)
_WITHOUT_FUNCTIONS: Final = re.compile(r"(tf_)?keras(\.src)?(\.(applications|engine|models)(\.\w+)*)?")
_INITIALIZERS: Final = "tensorflow.python.ops.init_ops_v2"
_VALUES: Final = frozenset({"__bytes__", "__ellipsis__", "__numpy__", "__tensor__", "__tuple__"})
_SPECS: Final = re.compile(r"tensorflow\.python\.(framework|ops\.ragged)\.\w+")


def describe_keras_2(config: Mapping[str, Any]) -> str:
    """Return what an object of a file calls or imports that is not a part of models; empty if it does not."""
    kind = config.get("class_name")
    inner = config.get("config")
    if found := _describe_call(str(kind), inner if isinstance(inner, Mapping) else {}):
        return found
    if "class_name" not in config and "spec_name" not in config:
        return ""
    return _describe_object(str(kind), config)


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
    return bool(_PARTS.fullmatch(module)) and not (kind == "function" and _WITHOUT_FUNCTIONS.fullmatch(module))


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
