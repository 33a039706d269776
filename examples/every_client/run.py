"""Ask one running server with every client, and compare the answers.

    make oip-clients
    .venv/bin/python examples/every_client/run.py

The clients are tritonclient, KServe's clients, TensorFlow Serving's stubs, curl, tpuserve_client, and the requests of
perf_analyzer and genai-perf. They need two environments: .venv, and .oip-clients for those that need an older protobuf.
Prints a table, and exits with status 1 if an answer differs.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import tpuserve_server  # noqa: E402
from examples.every_client.models import save_models  # noqa: E402
from examples.every_client.question import PROBABILITIES, SPECIES  # noqa: E402

OIP_CLIENTS = ROOT / ".oip-clients"
OIP_PYTHON = OIP_CLIENTS / "bin" / "python"
# The interpreter of each program. One process cannot import both tritonclient and kserve.
PROGRAMS = {
    "with_tensorflow_serving": Path(sys.executable),
    "with_tpuserve_client": Path(sys.executable),
    "with_tritonclient": OIP_PYTHON,
    "with_kserve": OIP_PYTHON,
    "with_load_generators": OIP_PYTHON,
}
TIMEOUT_S = 600.0
# Width of a table written to a file or a pipe, in columns.
LOG_WIDTH = 140


@dataclass(frozen=True, slots=True)
class Answer:
    """The result that a client received: its outputs by name as lists, or an error."""

    client: str
    outputs: dict[str, list[Any]] = field(default_factory=dict)
    error: str = ""


def main() -> int:
    """Run the example. Returns the exit status."""
    if not (OIP_CLIENTS / ".installed").exists():
        sys.exit("Cannot find .oip-clients with tritonclient and kserve. Run: make oip-clients")
    with tempfile.TemporaryDirectory() as folder:
        models = save_models(Path(folder))
        with tpuserve_server.start(models, log_path=Path(folder) / "log", progress=False) as server:
            addresses = (server.grpc_address, server.rest_address.removeprefix("http://"))
            answers = [answer for name, python in PROGRAMS.items() for answer in ask(name, python, *addresses)]
    same = [is_same(answer, answers[0]) for answer in answers]
    print_table(answers, same)
    return 0 if all(same) else 1


def ask(program: str, python: Path, grpc_address: str, rest_address: str) -> Iterator[Answer]:
    """Run the program of an environment, and yield the answer of each client. Blocks."""
    command = [str(python), "-m", f"examples.every_client.{program}", grpc_address, rest_address]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    for line in done.stdout.splitlines():
        yield Answer(**json.loads(line))
    if done.returncode:
        yield Answer(program, error=f"exit status {done.returncode}: {done.stderr.strip()[-500:]}")


def is_same(answer: Answer, first: Answer) -> bool:
    """Compare all outputs of an answer with those of the first: float32 numbers bit for bit."""
    return bool(answer.outputs and first.outputs) and all(
        np.array_equal(_array(name, value), _array(name, first.outputs[name])) for name, value in answer.outputs.items()
    )


def _array(name: str, value: list[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    return np.array(value, np.float32 if name == PROBABILITIES else None)


def print_table(answers: Sequence[Answer], same: Sequence[bool]) -> None:
    """Print a row for each client, and the errors below."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("client", "species", "probabilities of the first", "same"):
        table.add_column(column)
    for answer, is_equal in zip(answers, same, strict=True):
        first_row = answer.outputs.get(PROBABILITIES, [[]])[0]
        species = " ".join(answer.outputs.get(SPECIES, []))
        cells = (answer.client, species, " ".join(f"{value:.6f}" for value in first_row), "yes" if is_equal else "NO")
        table.add_row(*map(Text, cells))
    console = Console(width=None if sys.stdout.isatty() else LOG_WIDTH)
    console.print(table)
    for answer in answers:
        if answer.error:
            console.print(Text(f"{answer.client}: {answer.error}"), soft_wrap=True)
    console.print(f"{sum(same)} of {len(same)} clients got the same numbers.")


if __name__ == "__main__":
    sys.exit(main())
