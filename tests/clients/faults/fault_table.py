"""The table of all faults: a row for each scenario and client."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.clients.faults.scenarios import ALL
from tests.clients.faults.scripted_upstream import upstream
from tests.clients.faults.trial import MOST_CALLS, Trial, run_trial

KINDS: Final = ("sync", "async")
_HEAD: Final = "| fault | client | calls | succeeded | attempts | executed | seconds | recovered at call | first call |"
_MESSAGE_CHARACTERS: Final = 150


def print_table() -> None:
    """Run each scenario with each client, and print a row when it ends."""
    print(_HEAD)
    print("|---" * _HEAD.count(" | ") + "|---|")
    for row in _rows():
        print(row, flush=True)


def _rows() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder, upstream(Path(folder)) as running:
        for scenario in ALL:
            for protocol in scenario.protocols:
                for kind in KINDS:
                    running.server.reset()
                    trial = run_trial(scenario, kind, protocol, running)
                    yield f"| {scenario.name} | {kind} {protocol} | {_cells(trial)} |"


def _cells(trial: Trial) -> str:
    recovered = f"not in {MOST_CALLS}" if trial.recovered_at is None else trial.recovered_at
    counts = f"{len(trial.outcomes)} | {trial.outcomes.count(None)} | {trial.attempts} | {trial.executed}"
    return f"{counts} | {trial.seconds:.1f} | {recovered} | {_outcome(trial.error)}"


def _outcome(error: Exception | None) -> str:
    if error is None:
        return "ok"
    text = " ".join(str(error).split()).replace("|", "/")
    return f"{type(error).__name__}: {text[:_MESSAGE_CHARACTERS]}"
