"""Send valid and odd forms to a zoo of small models over every protocol, and print a table.

    make zoo                              # all of it: about an hour on 2 cores
    make zoo ONLY='max_pool*',irfft MOST=10   # some models, by name or pattern, and some forms of each kind

Every request must be answered rightly, or refused, within 200 ms and 50 MB, and no process may end. Otherwise the exit
status is 1. Ctrl-C prints the table so far, with exit status 130.
"""

import argparse
import fnmatch
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.zoo.catalogue.layers import LAYERS
from tests.zoo.catalogue.operation import Operation
from tests.zoo.catalogue.operations import OPERATIONS
from tests.zoo.protocols import Protocol
from tests.zoo.saving import VERSION, export_layers, save_layers, save_operations, save_unranked
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
    print(table.text(), end="", flush=True)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "zoo.json").write_text(table.json())
        (options.out / "zoo.md").write_text(table.markdown())
    return EXIT_INTERRUPTED if interrupted else int(bool(table.faulty))


def _lines(options: argparse.Namespace) -> Iterator[Line]:
    """Save the models and yield the lines of their sweeps. Report each model to the standard error."""
    started_s = time.monotonic()
    chosen = {
        saved: [one for one in operations if any(fnmatch.fnmatchcase(one.name, each) for each in options.only)]
        for saved, (operations, _) in SAVED.items()
        if saved in options.saved
    }
    total = sum(map(len, chosen.values()))
    done = 0
    for saved, operations in chosen.items():
        folder = options.models / saved
        _save(saved, [one.name for one in operations], folder)
        for operation in operations:
            done += 1
            _report(f"[{time.monotonic() - started_s:5.0f} s] {done} of {total}: {saved} {operation.name}")
            path = folder / operation.name / VERSION
            is_layer = SAVED[saved][0] is FORMS_OF_LAYERS
            yield from Sweep(saved, operation, path, options.protocols, is_layer=is_layer).lines(options.most)
    _report("")


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
    parser.add_argument("--only", default="*", help="names or patterns of models, separated by commas")
    parser.add_argument("--saved", default=",".join(SAVED), help="how the models are saved, separated by commas")
    parser.add_argument("--protocols", default=",".join(Protocol), help="protocols, separated by commas")
    parser.add_argument("--most", type=int, default=1000, help="largest number of forms of a kind for a model")
    parser.add_argument("--out", type=Path, help="folder for zoo.json and zoo.md")
    options = parser.parse_args(arguments)
    options.only = options.only.split(",")
    options.saved = options.saved.split(",")
    options.protocols = [Protocol(one) for one in options.protocols.split(",")]
    return options


if __name__ == "__main__":
    # TensorFlow reads them at its import, which the modules above have done: `make zoo` and the tests set them.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(main(sys.argv[1:]))
