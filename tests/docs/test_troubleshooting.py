"""Tests that tpuserve's own messages in the headings of the troubleshooting page exist in its code."""

import ast
import re

import pytest

from tests.deploy.dockerfile import ROOT

PAGE = (ROOT / "docs/how-to/operate/troubleshoot.md").read_text()
# Headings whose text begins like this contain messages of tpuserve. The others contain those of other programs.
OURS = ("From the server", "From `tpuserve`")
SECTIONS = re.findall(r"^### (.*)\n\n(.*)", PAGE, flags=re.MULTILINE)
MESSAGES = [
    message for heading, text in SECTIONS if text.startswith(OURS) for message in re.findall("`(.*?)`", heading)
]


@pytest.fixture(scope="module")
def texts() -> str:
    """Return every text in the code of the server, the client and the command, with adjacent literals joined."""
    folders = (
        "server/tpuserve_server",
        "clients/python/tpuserve_client",
        "clients/command/tpuserve_command",
        "formats",
    )
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    nodes = (node for path in files for node in ast.walk(ast.parse(path.read_text())))
    return "\n".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


@pytest.mark.parametrize("message", MESSAGES)
def test_code_has_each_fixed_part_of_a_message(texts: str, message: str) -> None:
    parts = [part.strip() for part in re.split(r"…|\d+", message)]
    assert [part for part in parts if part not in texts] == []


def test_every_section_names_the_program() -> None:
    assert len(MESSAGES) > 15
    assert [heading for heading, text in SECTIONS if not text.startswith("From ")] == []
