"""Tests for shell completion: the command completes its commands, and programs complete their own arguments."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command.test_subcommands import install
from tpuserve_command.completion import complete_arguments

TPUSERVE = Path(sys.prefix) / "bin" / "tpuserve"


def complete(*words: str) -> list[str]:
    """Return the completions of the last word, as bash gets them."""
    environment = {
        **os.environ,
        "_TPUSERVE_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("tpuserve", *words)),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run([TPUSERVE], env=environment, capture_output=True, text=True, check=False)
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_commands_complete() -> None:
    assert complete("ex") == ["export"]
    assert "--input" in complete("predict", "--in")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("export", "--batch-s"), "--batch-sizes"),
        (("export", "checkpoints", "models", "--from", "or"), "orbax"),
        (("serve", "--latency_p"), "--latency_percentile"),
        (("loadtest", "so"), "soak"),
        (("rollout", "--apply", "po"), "poll"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_program_completes_its_arguments(words: tuple[str, ...], expected: str) -> None:
    assert complete(*words) == [expected]


def test_a_program_that_fails_completes_nothing(tmp_path: Path) -> None:
    broken = install(tmp_path, "tpuserve-export", "exit 3")
    assert complete_arguments(str(broken), "tpuserve export", [], "--b") == []
    assert complete_arguments(str(tmp_path / "absent"), "tpuserve export", [], "--b") == []
