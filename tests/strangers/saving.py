"""The source of a model, saved and queried in a separate process."""

import json
import pickle
import sys
from pathlib import Path

from tests.strangers.processes import Processes, last_line
from tests.strangers.source_process import ANSWERS
from tests.strangers.stranger import Answers, Stranger
from tests.support.optional import find_torch

HERE = Path(sys.executable).parent


class SavingFailed(Exception):
    """The model's own code failed."""


def programs(stranger: Stranger) -> Path | None:
    """Return the directory of the user's `python` and `tpuserve`, or None if PyTorch is needed and not installed."""
    return find_torch() if stranger.torch else HERE


def save(stranger: Stranger, folder: Path, processes: Processes) -> Answers:
    """Write the sources into `folder` in a separate process. Blocks. Raises SavingFailed."""
    python = (programs(stranger) or HERE) / "python"
    command = [str(python), "-m", "tests.strangers.source_process", stranger.save, str(folder)]
    log = folder / "source.log"
    arguments = json.dumps(dict(stranger.arguments))
    status = processes.run([*command, arguments], folder / "source.out", log, stranger.environment)
    if status:
        raise SavingFailed(f"{stranger.save} exited with status {status}: {last_line(log)} (see {log})")
    try:
        answers: Answers = pickle.loads((folder / ANSWERS).read_bytes())
    except FileNotFoundError:
        raise SavingFailed(f"{stranger.save} exited with status 0 before it returned its outputs (see {log})") from None
    return answers
