"""The user's builder function, `pkg.module:function` on the command line, which returns the model."""

import difflib
import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import BuilderFailed, reason_of

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

# Matches JAX's errors about tensors of other frameworks.
_JAX = re.compile(r"\bjax(\.|lib|\b)", re.IGNORECASE)

# Keras' message for weights of an unknown size, and its usual cause.
_UNSIZED = "must be fully-defined"
_SIZE_ADVICE = (
    "The input of this layer has an unknown size, as the output of a lookup without terms has (output_mode='one_hot' "
    "and others). Give the lookup its terms (vocabulary=[...]), or a fixed size (max_tokens=N, "
    "pad_to_max_tokens=True): then the export restores the terms of a .keras file"
)


def find_builder(name: str, option: str = "--model") -> Callable[..., object]:
    """Import `pkg.module:function`, with the working directory on `sys.path`. Import no other code of the user.

    `option` is the command-line option that names the function, for error messages. Raises BuilderFailed.
    """
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise BuilderFailed(f"{option} {name!r} is not of the form pkg.module:function, such as models:build")
    module = import_module(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        raise BuilderFailed(f"{module_name} has no function {function_name!r}{_suggest(module, function_name)}")
    return function  # type: ignore[no-any-return]  # getattr of a module


def import_module(name: str) -> ModuleType:
    """Import a module of the user, with the working directory on `sys.path`. Raises BuilderFailed."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except Exception as error:  # a user's module may raise anything while it is imported
        raise BuilderFailed(f"cannot import {name}: {_explain_import(name, error)}") from error


def _explain_import(module_name: str, error: Exception) -> str:
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]:
        return f"{reason}. Python searched the working directory and the PYTHONPATH"
    return reason + _where(error)


def _suggest(module: ModuleType, wanted: str) -> str:
    there = [name for name, one in vars(module).items() if callable(one) and not name.startswith("_")]
    close = difflib.get_close_matches(wanted, there, n=3)
    return f". Did you mean {' or '.join(close)}?" if close else f". It has {', '.join(sorted(there)[:10]) or 'none'}"


def builder_failure(name: str, error: Exception) -> BuilderFailed:
    """Return the error for an exception of the user's function. It names the line of the user's code."""
    return BuilderFailed(f"{name} failed: {type(error).__name__}: {reason_of(error)}{_where(error)}")


def _where(error: Exception) -> str:
    """Locate the innermost frame that is neither in the exporter nor in an installed package."""
    ours = Path(__file__).parents[1]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        is_installed = "site-packages" in path.parts or path.is_relative_to(Path(os.__file__).parent)
        if path.is_file() and not is_installed and not path.is_relative_to(ours):
            return f" ({path.name}, line {frame.lineno})"
    return ""


def check_arguments(name: str, function: Callable[..., object], args: Mapping[str, object]) -> None:
    """Raise BuilderFailed if the function does not take an argument from --model-arg."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a callable written in C
        return
    unknown = [arg for arg in args if arg not in parameters]
    if unknown and not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        takes = ", ".join(map(str, parameters.values())) or "no arguments"
        raise BuilderFailed(f"--model-arg {', '.join(unknown)}: {name} has no such argument. Its arguments are {takes}")


def build_model(name: str, args: Mapping[str, object]) -> "keras.Model":
    """Call the builder for a Keras 3 model. Automatic layer names count from the start, as in a new training run.

    Raises BuilderFailed.
    """
    import keras

    model = _call(name, args)
    if not isinstance(model, keras.Model):
        raise BuilderFailed(f"{name} returned {_describe(model)} instead of a Keras 3 model")
    return model


def build_trackable(name: str, args: Mapping[str, object]) -> "keras.Model | tf.Module":
    """Call the builder for a Keras 3 model or another tf.Module, such as a Keras 2 model. Raises BuilderFailed."""
    import keras
    import tensorflow as tf

    model = _call(name, args)
    if not isinstance(model, keras.Model | tf.Module):
        raise BuilderFailed(f"{name} returned {_describe(model)} instead of a Keras model or a tf.Module")
    return model


def _call(name: str, args: Mapping[str, object]) -> object:
    import keras

    function = find_builder(name)
    check_arguments(name, function, args)
    keras.backend.clear_session()
    try:
        return function(**args)
    except Exception as error:  # the user's code
        if isinstance(error, TypeError | ValueError) and _JAX.search(str(error)):
            raise BuilderFailed(
                f"{name} makes a layer that computes with JAX itself, but Keras runs on TensorFlow here. Use "
                "keras.ops in the layer, which works on both"
            ) from error
        failure = builder_failure(name, error)
        raise (BuilderFailed(f"{failure}. {_SIZE_ADVICE}") if _UNSIZED in str(error) else failure) from error


def _describe(value: object) -> str:
    return f"a Keras 2 model ({type(value).__name__})" if is_keras_2(value) else describe_type(value)


def describe_type(value: object) -> str:
    """Return the qualified name of the value's type: `flax.linen.Dense`, or `int`."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def is_keras_2(value: object) -> bool:
    """Return whether the value is a model or layer of Keras 2, without importing Keras 2."""
    return any(base.__module__.startswith("tf_keras.") for base in type(value).__mro__)
