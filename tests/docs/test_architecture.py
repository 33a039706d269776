"""Tests that the modules and rooms that docs/explanation/architecture.md names exist."""

import re
from pathlib import Path

from tests.deploy.dockerfile import ROOT

TEXT = (ROOT / "docs/explanation/architecture.md").read_text()
SERVER = ROOT / "server/tpuserve_server"
# The directory of modules that a table names without one.
_DEFAULT = "core/batching"
_MODULE = re.compile(r"`([\w./]+\.py)`")


def cells() -> list[str]:
    """Return the first cell of each row of a table about the server's modules."""
    server = TEXT.partition("## Layers of the server")[2].partition("## Tests")[0]
    return re.findall(r"^\| (.+?) \|", server, re.MULTILINE)


def test_every_module_of_a_table_is_there() -> None:
    missing = []
    for cell in cells():
        folder = _DEFAULT
        for name in _MODULE.findall(cell):
            path = Path(name) if "/" in name else Path(folder, name)
            folder = str(path.parent)
            if not (SERVER / path).is_file():
                missing.append(str(path))
    assert missing == []


def test_every_path_in_the_text_is_there() -> None:
    paths = {name for name in _MODULE.findall(TEXT) if "/" in name}
    places = (ROOT, SERVER, ROOT / "tests", ROOT / "exporter/tpuserve_exporter")
    assert sorted(name for name in paths if not any((place / name).is_file() for place in places)) == []


def test_the_table_of_rooms_names_all_of_them() -> None:
    rooms = TEXT.partition("## Layers of the server")[2].partition("- **Protocols.**")[0]
    named = set(re.findall(r"`([\w/]+)`", " ".join(re.findall(r"^\| (`[^|]+) \|", rooms, re.MULTILINE))))
    first = {path.name for path in SERVER.iterdir() if (path / "__init__.py").is_file()}
    floors = {f"core/{path.name}" for path in (SERVER / "core").iterdir() if (path / "__init__.py").is_file()}
    assert {name.partition("/")[0] for name in named} == first
    assert floors <= named


def test_the_table_of_the_exporter_names_all_of_its_rooms() -> None:
    rooms = TEXT.partition("## Layers of the exporter")[2].partition("## Tests")[0]
    named = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`[^|]+) \|", rooms, re.MULTILINE)))
    entries = (ROOT / "exporter/tpuserve_exporter").iterdir()
    first = {path.stem for path in entries if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert sorted(named) == sorted(first - {"__init__"})
