"""The source of a stranger: saved, and asked, in a process of its own."""

import json
import pickle
import sys
from pathlib import Path

from tests.strangers.processes import ROOT, Processes
from tests.strangers.source_process import ANSWERS
from tests.strangers.stranger import Answers, Stranger

HERE = Path(sys.executable).parent
TORCH = ROOT / ".torch/bin"


class SavingFailed(Exception):
    """The stranger's own code failed."""


def programs(stranger: Stranger) -> Path | None:
    """The folder of the `python` and `tpuserve` that the stranger's user has; None where PyTorch is not installed."""
    if not stranger.torch:
        return HERE
    return TORCH if (TORCH / "python").exists() else None


def save(stranger: Stranger, folder: Path, processes: Processes) -> Answers:
    """Block while the process writes the sources into `folder`. Raises SavingFailed."""
    python = (programs(stranger) or HERE) / "python"
    command = [str(python), "-m", "tests.strangers.source_process", stranger.save, str(folder)]
    log = folder / "source.log"
    arguments = json.dumps(dict(stranger.arguments))
    status = processes.run([*command, arguments], folder / "source.out", log, stranger.environment)
    if status:
        last = log.read_text(errors="replace").strip().rpartition("\n")[2]
        raise SavingFailed(f"{stranger.save} ended with status {status}: {last} ({log})")
    answers: Answers = pickle.loads((folder / ANSWERS).read_bytes())
    return answers
