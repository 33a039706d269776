"""Conversion of Python keyword arguments to flags of `tpuserve serve`. The names are the same."""

import difflib
import json
import os
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TypeAlias

from tpuserve_server.command.settings import flags
from tpuserve_server.core.base_path import describe_without_version
from tpuserve_server.core.local_storage import LocalStorage
from tpuserve_server.launch.errors import StartFailed

Models: TypeAlias = Mapping[str, str | os.PathLike[str]]

_NAMES = frozenset(flag.name for flag in flags())
_NAME_MODELS = ("model_name", "model_base_path", "model_config_file")


def check_keywords(models: Models | None, settings: Mapping[str, object]) -> None:
    """Raise TypeError for an unknown keyword, and ValueError if models are missing or named twice."""
    for name in settings:
        if name not in _NAMES:
            nearest = difflib.get_close_matches(name, _NAMES, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else "tpuserve serve --help lists the flags"
            raise TypeError(f"start() has no setting {name!r}; {hint}")
    if models is None:
        return
    if not isinstance(models, Mapping):
        raise TypeError(f"models maps names to base paths, such as {{'digits': 'models/digits'}}; got {models!r}")
    if not models:
        raise ValueError("models is empty. Pass at least one model and its base path")
    if conflicting := [name for name in _NAME_MODELS if settings.get(name) is not None]:
        raise ValueError(f"models and {conflicting[0]} both configure models. Set only one of them")


def check_base_paths(base_paths: Models) -> None:
    """Raise StartFailed for a local base path without a version. The server would wait for one forever."""
    for name, base_path in base_paths.items():
        path = os.fspath(base_path)
        if "://" in path:
            continue
        try:
            versions = LocalStorage(lambda _: None).find_versions(path)
            if not versions:
                file = "" if versions is None else _find_version_file(path)
                wrong = describe_without_version(path, exists=versions is not None, file=file)
                raise StartFailed(f"Cannot serve {name}: its {wrong}.")
        except OSError as error:
            raise StartFailed(f"Cannot serve {name}: its base path {path} cannot be read: {error.strerror}.") from error


def _find_version_file(base_path: str) -> str:
    # The module imports pydantic, which only this error message needs.
    from tpuserve_server.versions.parts import find_version_file

    return find_version_file(os.listdir(base_path))


def model_config(models: Models) -> str:
    """Return a ModelServerConfig of the models, in text format."""
    configs = (
        f'  config {{ name: {_quote(name)} base_path: {_quote(_absolute(path))} model_platform: "tensorflow" }}\n'
        for name, path in models.items()
    )
    return f"model_config_list {{\n{''.join(configs)}}}\n"


def flag_arguments(settings: Mapping[str, object]) -> list[str]:
    """Return settings as command-line arguments, without those that are None."""
    return [f"--{name}={_text(value)}" for name, value in settings.items() if value is not None]


def _absolute(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    return text if "://" in text else os.path.abspath(text)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _text(value: object) -> str:
    """Format `True` as `true`, `(1, 8)` as `1,8`, `{"data": 2}` as `data=2`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, Mapping):
        return ",".join(f"{key}={_text(one)}" for key, one in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ",".join(map(_text, value))
    return str(value)
