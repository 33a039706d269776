"""Shell completion of subcommands. The program of each completes its arguments."""

import os
import shlex
import subprocess
from collections.abc import Sequence

from click.shell_completion import CompletionItem

# Longest wait for a program, in seconds. The shell blocks meanwhile.
_TIMEOUT_S = 10


def complete_arguments(program: str, command: str, arguments: Sequence[str], incomplete: str) -> list[CompletionItem]:
    """Return the completions of `incomplete`, which follows `arguments` on the command line of a subcommand.

    `program` is the path of the executable and `command` its name in messages, such as "tpuserve export". Uses click's
    protocol for bash (https://click.palletsprojects.com/en/stable/shell-completion). Blocks until the program ends.
    Returns no completions if the program fails or takes longer than 10 s.
    """
    environment = {
        **os.environ,
        f"_{command.upper()}_COMPLETE": "bash_complete",
        "COMP_WORDS": shlex.join([program, *arguments, incomplete]),
        "COMP_CWORD": str(len(arguments) + 1),
    }
    # Not the variable of this process, which would make the program complete its own group.
    environment.pop("_TPUSERVE_COMPLETE", None)
    try:
        done = subprocess.run(
            [program], env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = (line.partition(",") for line in done.stdout.splitlines())
    return [CompletionItem(value, type=kind) for kind, _, value in lines if kind in ("plain", "file", "dir")]
