"""Running one example, and the table of the outcomes."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from tests.triton_examples.catalogue import Example

Result: TypeAlias = Literal["passed", "expected failure", "not run", "FAILED"]

# The folder of the examples in a clone of github.com/triton-inference-server/client.
EXAMPLES_FOLDER = Path("src/python/examples")
# An example takes a second or two. Those with a stream would wait forever for a lost response.
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an example. `output` is what it printed if it failed."""

    example: Example
    result: Result
    output: str = ""


def run_example(example: Example, python: Path, checkout: Path, addresses: Mapping[str, str], folder: Path) -> Outcome:
    """Run an example in `folder` with the server at `addresses` (host:port by protocol). Blocks for seconds."""
    if not example.runs:
        return Outcome(example, "not run")
    file = checkout / EXAMPLES_FOLDER / example.file
    command = [str(python), "-u", str(file), "-u", addresses[example.protocol], *example.arguments]
    # Some would route loopback addresses through a proxy that the environment names.
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        return Outcome(example, "FAILED", f"no end after {TIMEOUT_S:.0f} s: {error.output!r}")
    return judge(example, done.returncode, done.stdout)


def judge(example: Example, status: int, output: str) -> Outcome:
    """Return the outcome of an example that ended with `status`."""
    if example.reason:
        expected = status != 0 and example.failure in output
        return Outcome(example, "expected failure") if expected else Outcome(example, "FAILED", output)
    passed = status == 0 and example.passes in output
    return Outcome(example, "passed") if passed else Outcome(example, "FAILED", output)


def table(outcomes: Sequence[Outcome]) -> str:
    """Write a line for each example with its result and the reason, and the total, as Markdown."""
    lines = [_row("example", "outcome", "reason"), _row("---", "---", "---")]
    lines += [_row(one.example.title, one.result, one.example.reason) for one in outcomes]
    passed = sum(one.result == "passed" for one in outcomes)
    counted = sum(not one.example.reason for one in outcomes)
    lines.append(_row("**passed**", f"**{passed} of {counted}**", ""))
    return "\n".join(lines)


def failed(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes that differ from what the catalogue expects."""
    return [outcome for outcome in outcomes if outcome.result == "FAILED"]


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"
