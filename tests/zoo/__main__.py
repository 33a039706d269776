"""Send valid and odd forms to a zoo of small models over every protocol, and print a table.

    make zoo                                   # all of it: hours on 2 cores
    make zoo ONLY='max_pool*,irfft' MOST=10    # some models, by name or pattern, and some forms of each kind

Every request must be answered rightly, or refused, within 200 ms and 50 MB, and no process may end. Otherwise the exit
status is 1, except for the faults in tests/zoo/known.py. Ctrl-C prints the table so far, with exit status 130.
"""

import argparse
import fnmatch
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.zoo.catalogue.layers import LAYERS
from tests.zoo.catalogue.operation import Operation
from tests.zoo.catalogue.operations import OPERATIONS
from tests.zoo.protocols import Protocol
from tests.zoo.reference import Reference
from tests.zoo.sandbox import Sandbox
from tests.zoo.saving import VERSION, export_layers, save_layers, save_operations, save_unranked
from tests.zoo.server import zoo_server
from tests.zoo.sweep import Line, Sweep
from tests.zoo.table import ZooTable

FORMS_OF_LAYERS: Final = tuple(layer.form for layer in LAYERS)
# How models are saved: their forms, and the function that saves those with these names in a folder.
SAVED: Final[dict[str, tuple[Sequence[Operation], Callable[[Sequence[str], Path], None]]]] = {
    "plain": (OPERATIONS, save_operations),
    "unranked": (OPERATIONS, save_unranked),
    "keras": (FORMS_OF_LAYERS, save_layers),
    "exported": (FORMS_OF_LAYERS, export_layers),
}
# Servers of the models: a process for each, or one for all.
SANDBOX: Final = "sandbox"
SERVER: Final = "server"
# Forms of a kind for a model on a server, where a request costs ten times as much.
MOST_ON_SERVER: Final = 3
# The status that shells report for SIGINT.
EXIT_INTERRUPTED: Final = 130


def main(arguments: Sequence[str]) -> int:
    """Run the zoo that the command line names. Returns the exit status."""
    options = _parse(arguments)
    table = ZooTable()
    interrupted = False
    try:
        for line in _lines(options):
            table.add(line)
    except KeyboardInterrupt:
        interrupted = True
    _report("")
    print(table.text(), end="", flush=True)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "zoo.json").write_text(table.json())
        (options.out / "zoo.md").write_text(table.markdown())
    return EXIT_INTERRUPTED if interrupted else int(bool(table.faulty))


def _lines(options: argparse.Namespace) -> Iterator[Line]:
    """Save the models and yield the lines of their sweeps. Report each model to the standard error."""
    started_s = time.monotonic()
    for saved in options.saved:
        operations = [
            one for one in SAVED[saved][0] if any(fnmatch.fnmatchcase(one.name, each) for each in options.only)
        ]
        folder = options.models / saved
        _save(saved, [one.name for one in operations], folder)
        for through in options.through:
            for number, sweep in enumerate(_sweeps(saved, operations, folder, through, options.protocols), 1):
                title = f"{number} of {len(operations)}: {sweep.title}"
                _report(f"[{time.monotonic() - started_s:5.0f} s] {title}")
                most = options.most if through == SANDBOX else min(options.most, MOST_ON_SERVER)
                yield from sweep.lines(most)


def _sweeps(
    saved: str, operations: Sequence[Operation], folder: Path, through: str, protocols: Sequence[Protocol]
) -> Iterator[Sweep]:
    """Yield a sweep of each model, which is served until the next one."""
    with ExitStack() as stack:
        if through != SANDBOX and operations:
            log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "log"
            paths = [folder / one.name for one in operations]
            server = stack.enter_context(zoo_server(paths, log))
            for one in operations:
                yield Sweep(f"{saved}, {through}", one, server, protocols, None, one.name)
            return
        for one in operations:
            with ExitStack() as processes:
                box = processes.enter_context(Sandbox(folder / one.name / VERSION))
                is_known = SAVED[saved][0] is OPERATIONS and one.repeats
                reference = processes.enter_context(Reference(one)) if is_known else None
                yield Sweep(saved, one, box, protocols, reference)


def _save(saved: str, names: Sequence[str], folder: Path) -> None:
    """Save in another process, so that this one never starts TensorFlow's threads: they do not survive a fork."""
    process = multiprocessing.get_context("fork").Process(target=SAVED[saved][1], args=(names, folder))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"Cannot save the models of {saved}: exit code {process.exitcode}")


def _report(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=Path, default=Path("build/zoo"), help="folder that keeps the saved models")
    parser.add_argument("--only", type=_split, default=["*"], help="names or patterns of models, separated by commas")
    parser.add_argument("--saved", type=_split, default=[*SAVED], help=f"some of {', '.join(SAVED)}")
    parser.add_argument("--through", type=_split, default=[SANDBOX, SERVER], help="some of sandbox, server")
    parser.add_argument("--protocols", type=_protocols, default=[*Protocol], help=f"some of {', '.join(Protocol)}")
    parser.add_argument("--most", type=int, default=1000, help="largest number of forms of a kind for a model")
    parser.add_argument("--out", type=Path, help="folder for zoo.json and zoo.md")
    return parser.parse_args(arguments)


def _split(text: str) -> list[str]:
    return text.split(",")


def _protocols(text: str) -> list[Protocol]:
    return [Protocol(one) for one in text.split(",")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
