"""Tests that the paths and functions in docs/contributing.md exist."""

import re

from tests.deploy.dockerfile import ROOT

TEXT = re.sub(r"```.*?```", "", (ROOT / "docs/contributing.md").read_text(), flags=re.DOTALL)
POLICY = "server/tpuserve_server/core/models/policy.py"

_PATH = re.compile(r"(?!/)\S*/\S*|\S+\.(py|md|toml|txt|ya?ml|lock|json)")
_STEP = re.compile(r"^\d+\. (.*)$", re.MULTILINE)


def quoted(text: str) -> list[str]:
    """Return the texts in backticks."""
    return re.findall(r"`([^`\n]+)`", text)


def missing_paths(text: str) -> list[str]:
    """Return the paths in backticks that the tree lacks. The path of a URL begins with a slash and is ignored."""
    return [name for name in quoted(text) if _PATH.fullmatch(name) and not (ROOT / name).exists()]


def missing_functions(text: str) -> list[str]:
    """Return the functions that the file of their step lacks.

    A step begins with its file. Functions end in `()`.
    """
    missing = []
    for step in _STEP.findall(text):
        path, *names = quoted(step)
        source = (ROOT / path).read_text()
        functions = [name.removesuffix("()") for name in names if name.endswith("()")]
        missing += [f"{path}: {name}" for name in functions if not re.search(rf"\bdef {name}\(", source)]
    return missing


def test_every_path_exists() -> None:
    assert missing_paths(TEXT) == []


def test_every_function_is_in_the_file_of_its_step() -> None:
    assert _STEP.findall(TEXT)
    assert missing_functions(TEXT) == []


def test_what_is_gone_is_found() -> None:
    assert missing_paths(f"`{POLICY}`, `/v1/models`, `make test`, `gone()`") == []
    assert missing_paths("`tests/gone.py` and `gone.md` and `docs/gone/`") == ["tests/gone.py", "gone.md", "docs/gone/"]
    assert missing_functions(f"1. `{POLICY}` — `next_action()`, then `gone()`") == [f"{POLICY}: gone"]
