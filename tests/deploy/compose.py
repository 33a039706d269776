"""deploy/compose.yaml as Python data, with the defaults of its variables."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.deploy.dockerfile import ROOT
from tests.deploy.manifests import Manifest, read

DIRECTORY: Final = ROOT / "deploy"
COMPOSE: Final = read(DIRECTORY / "compose.yaml")
_VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def service(name: str, **variables: str) -> Manifest:
    """Return a service with the values of these variables, and the defaults of all others."""
    replaced = _replaced(COMPOSE["services"][name], variables)
    assert isinstance(replaced, dict)
    return replaced


def mounts(of: Manifest) -> dict[str, Path]:
    """Return the host's files and directories of a service by their paths in the container."""
    found = {}
    for each in of["volumes"]:
        source, target = (each["source"], each["target"]) if isinstance(each, dict) else each.split(":")[:2]
        if source.startswith("."):
            found[target] = DIRECTORY / source
    return found


def on_this_machine(argument: str, of: Manifest) -> str:
    """Return a service's argument with the host's paths instead of the container's."""
    for target, source in mounts(of).items():
        argument = argument.replace(target, str(source))
    return argument


def _replaced(value: Any, variables: Mapping[str, str]) -> Any:  # noqa: ANN401 - any YAML value
    if isinstance(value, str):
        return _VARIABLE.sub(lambda found: variables.get(found[1], found[2]), value)
    if isinstance(value, list):
        return [_replaced(each, variables) for each in value]
    if isinstance(value, dict):
        return {name: _replaced(each, variables) for name, each in value.items()}
    return value
