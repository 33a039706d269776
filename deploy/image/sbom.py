"""`python -m deploy.image.sbom FOLDER [TARGET...]`: write the Python packages of images as CycloneDX 1.5.

uv makes each document from the locks: names, versions, hashes and dependencies of the packages for Linux on x86-64.
This module adds their licences. The packages of the base image are not in it.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from deploy.image.targets import TARGETS, Target
from deploy.supply.licences import canonical, find_licence

ROOT = Path(__file__).parents[2]
_PIN = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;]+)(?P<marker>\s*;[^\\]+)?")
_PROJECT = """\
[project]
name = "{image}"
version = "{version}"
requires-python = "==3.11.*"
dependencies = {dependencies}

[tool.uv]
package = false
environments = ["{environment}"]
"""
_ENVIRONMENT = (
    "sys_platform == 'linux' and platform_machine == 'x86_64' and platform_python_implementation == 'CPython'"
)


def main(folder: Path, names: Sequence[str]) -> None:
    """Write FOLDER/IMAGE.cdx.json for each target, by default for all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or TARGETS:
        path = folder / f"{TARGETS[name].image}.cdx.json"
        document = bill_of_materials(TARGETS[name])
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        sys.stdout.write(f"{path}: {len(document['components'])} packages\n")


def bill_of_materials(target: Target) -> dict[str, Any]:
    """Return the document of a target. Blocks while uv reads the metadata of the packages from its cache or the index.

    Raises:
        subprocess.CalledProcessError: uv failed, for example without a package index. uv has printed the reason.
    """
    projects = [tomllib.loads((ROOT / each / "pyproject.toml").read_text())["project"] for each in target.projects]
    version = projects[1]["version"]
    with tempfile.TemporaryDirectory() as folder:
        # A list of strings in JSON is one in TOML.
        text = _PROJECT.format(
            image=target.image, version=version, environment=_ENVIRONMENT, dependencies=json.dumps(list(_pins(target)))
        )
        Path(folder, "pyproject.toml").write_text(text, encoding="utf-8")
        _uv("lock", folder)
        removed = [f"--prune={name}" for name in target.removed]
        document: dict[str, Any] = json.loads(_uv("export", folder, "--format=cyclonedx1.5", *removed))
    for component in document["components"]:
        component.update(_licences(component["name"]))
    document["components"] += [_component(each["name"], each["version"]) for each in projects]
    document["metadata"]["component"]["type"] = "container"
    return document


def _pins(target: Target) -> Iterator[str]:
    """Yield the requirements of a target's locks, without hashes."""
    for lock in target.locks:
        for line in (ROOT / f"requirements/{lock}.lock").read_text(encoding="utf-8").splitlines():
            pin = _PIN.match(line)
            if pin is not None:
                yield f"{pin['name']}=={pin['version']}{(pin['marker'] or '').rstrip()}"


def _component(name: str, version: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{version}"
    own = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    return {**own, "licenses": [{"expression": "Apache-2.0"}]}


def _licences(name: str) -> dict[str, Any]:
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        installed = None
    expression = find_licence(canonical(name), installed)
    return {} if expression is None else {"licenses": [{"expression": expression}]}


def _uv(command: str, folder: str, *arguments: str) -> str:
    uv = Path(sys.executable).with_name("uv")
    ran = subprocess.run(
        [uv, command, "--quiet", "--python", sys.executable, "--directory", folder, *arguments],
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return ran.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
