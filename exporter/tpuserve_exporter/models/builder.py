"""The user's builder function: `pkg.module:function` named on the command line, called for a Keras model."""

import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import BuilderFailed

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

# In what JAX says of tensors that are not its own.
_JAX = re.compile(r"\bjax(\.|lib|\b)", re.IGNORECASE)


def find_builder(name: str, option: str = "--model") -> Callable[..., object]:
    """Import `pkg.module:function`, the working directory being importable. Nothing else of the user's is imported.

    `option` is where the user said so.
    """
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise BuilderFailed(f"{option} {name!r} is not of the form pkg.module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may raise anything while it is imported
        raise BuilderFailed(f"cannot import {module_name}: {type(error).__name__}: {error}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise BuilderFailed(f"{module_name} has no function {function_name!r}")
    return function  # type: ignore[no-any-return]  # getattr of a module


def build_model(name: str, args: Mapping[str, object]) -> "keras.Model":
    """Call the builder for a Keras 3 model, with layer names counted from the start, as in a fresh training run."""
    import keras

    model = _call(name, args)
    if not isinstance(model, keras.Model):
        raise BuilderFailed(f"{name} returned {_describe(model)}; a Keras 3 model is needed")
    return model


def build_trackable(name: str, args: Mapping[str, object]) -> "keras.Model | tf.Module":
    """Call the builder for a Keras 3 model or any other tf.Module, Keras 2 models among them."""
    import keras
    import tensorflow as tf

    model = _call(name, args)
    if not isinstance(model, keras.Model | tf.Module):
        raise BuilderFailed(f"{name} returned {_describe(model)}; a Keras model or a tf.Module is needed")
    return model


def _call(name: str, args: Mapping[str, object]) -> object:
    import keras

    function = find_builder(name)
    keras.backend.clear_session()
    try:
        return function(**args)
    except Exception as error:  # the user's code
        if isinstance(error, TypeError | ValueError) and _JAX.search(str(error)):
            raise BuilderFailed(
                f"{name} makes a layer that computes with JAX itself, and Keras runs on TensorFlow here: compute with "
                "keras.ops in it, which is the same on both"
            ) from error
        raise BuilderFailed(f"{name} failed: {type(error).__name__}: {error}") from error


def _describe(value: object) -> str:
    kind = type(value)
    if is_keras_2(value):
        return f"a Keras 2 model ({kind.__name__})"
    return f"{kind.__module__}.{kind.__qualname__}"


def is_keras_2(value: object) -> bool:
    """Whether it is a model or layer of Keras 2, told without importing that."""
    return any(base.__module__.startswith("tf_keras.") for base in type(value).__mro__)
