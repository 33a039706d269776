"""Soak and chaos: a real server under mixed traffic of all protocols and random faults, with every answer checked.

    make soak MINUTES=60 SEED=7

Prints a line a minute, and a table at the end. The exit status is 1 if an answer was wrong, a request was lost, a fault
had another effect than the documented one, or memory, threads or descriptors grew. Ctrl-C ends the run with the table.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import random
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from tests.soak.soak import Plan, Soak, run_soak
from tests.soak.table import text_table

_TERMINAL_S: Final = 1.0
_LINE_S: Final = 60.0


def main(arguments: Sequence[str]) -> int:
    """Run a soak. Returns the exit status."""
    options = _parse(arguments)
    # A cancelled call logs a line of gRPC's own. The soak counts the calls.
    logging.getLogger("grpc").setLevel(logging.CRITICAL)
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    plan = Plan(seed, options.rate, options.minutes * 60 if options.minutes else None)
    print(f"Soak, {options.minutes or 'as few as possible'} min, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tpuserve-soak-") as folder:
        result = asyncio.run(run_soak(plan, Path(folder), _watch))
        if options.log is not None:
            options.log.write_bytes((Path(folder) / "server.log").read_bytes())
    print(text_table(result), end="", flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(result.document(), indent=2), encoding="utf-8")
    return 1 if result.problems else 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60, help="duration; 0: each kind of fault once (default: 60)")
    parser.add_argument("--seed", type=int, help="seed of faults and requests (default: a random one)")
    parser.add_argument("--rate", type=float, default=60.0, help="requests per second (default: 60)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the result as JSON")
    parser.add_argument("--log", type=Path, metavar="FILE", help="write the server's log")
    return parser.parse_args(arguments)


async def _watch(soak: Soak) -> AsyncIterator[None]:
    """Show the progress, and let Ctrl-C end the run."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, soak.stop)
    showing = asyncio.create_task(_show(soak))
    try:
        yield
    finally:
        showing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await showing
        if sys.stdout.isatty():
            print()


async def _show(soak: Soak) -> None:
    """Print a line a minute, or rewrite one line of a terminal."""
    is_terminal = sys.stdout.isatty()
    line_end = "\n" if is_terminal else ""
    shown = (0, 0)
    while True:
        await asyncio.sleep(_TERMINAL_S if is_terminal else _LINE_S)
        if is_terminal:
            print(f"\r\033[2K{soak.progress()}", end="", flush=True)
        else:
            print(soak.progress(), flush=True)
        problems, failures = (
            [f"{one.fault}: {one.problem}" for one in soak.chaos.journal if one.problem],
            soak.ledger.failures,
        )
        for text in (*problems[shown[0] :], *failures[shown[1] :]):
            print(f"{line_end}{text}", flush=True)
        shown = (len(problems), len(failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
