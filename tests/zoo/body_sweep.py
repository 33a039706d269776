"""Send JSON bodies of every structure and size to a server that has another client, and print a table.

    python -m tests.zoo.body_sweep --sizes 1 1024

A small document of a valid structure must be answered. Every other one must be answered or refused. Memory may grow by
50 MB and a multiple of the document, other requests may wait for a bounded time, and no process may end. Otherwise the
exit status is 1.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

from tests.zoo.bodies import KILOBYTE, MODELS, SIZES, STRUCTURES, bodies
from tests.zoo.protocols import Request
from tests.zoo.sandbox import Outcome, Verdict
from tests.zoo.saving import save_operations
from tests.zoo.server import ZooServer, zoo_server

PATIENCE_S: Final = 120.0
# Memory that a document may take: a constant, and a multiple of its size.
MOST_MB: Final = 50.0
MOST_TIMES: Final = 8.0
# Wait of another client during a request. A busy machine may stop every client for longer, so that a document is at
# fault only if another client waits this long each time that it is sent.
MOST_WAIT_MS: Final = 250.0
MOST_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class BodyLine:
    """One document: its structure, the response, and its effect on the server and on another client."""

    protocol: str
    structure: str
    kilobytes: int
    sent_kilobytes: int
    verdict: Verdict
    ms: float
    mb: float
    others_ms: float
    fault: str


def sweep_bodies(server: ZooServer, sizes: Sequence[int]) -> Iterator[BodyLine]:
    """Yield a line for each structure and size."""
    good = STRUCTURES[0].request(0, is_gzip=False)
    for structure, size, is_gzip in bodies(sizes):
        request = structure.request(size, is_gzip=is_gzip)
        outcome, others_ms = _beside(server, request, good)
        for _ in range(MOST_TRIES - 1):
            if others_ms <= MOST_WAIT_MS:
                break
            _, others_ms = _beside(server, request, good)
        fault = _fault(outcome, others_ms, size)
        if not fault and structure.is_valid and size == 1 and outcome.verdict is not Verdict.ANSWERED:
            fault = f"a valid document is {outcome.verdict}: {outcome.detail}"
        yield BodyLine(
            "OIP REST" if structure.is_oip else "TF REST", f"{structure.name}{', gzip' if is_gzip else ''}",
            size, len(request.body) // KILOBYTE, outcome.verdict, outcome.ms, outcome.mb, others_ms,
            fault,
        )  # fmt: skip


def _beside(server: ZooServer, request: Request, good: Request) -> tuple[Outcome, float]:
    """Send a request while another client sends. Return its outcome, and the worst wait of the other client in ms."""
    bystander = server.bystander(good)
    with bystander:
        outcome = server.send(request)
    return outcome, bystander.worst_ms


def _fault(outcome: Outcome, others_ms: float, size: int) -> str:
    if outcome.is_end or outcome.verdict is Verdict.FAILED:
        return f"{outcome.verdict} {outcome.detail}"
    if outcome.mb > MOST_MB + MOST_TIMES * size * KILOBYTE / 1e6:
        return f"memory: {outcome.mb:.0f} MB"
    return f"others wait {others_ms:.0f} ms" if others_ms > MOST_WAIT_MS else ""


def text_table(lines: Sequence[BodyLine]) -> str:
    """Return the lines with columns aligned by spaces."""
    rows = [tuple(field.name for field in fields(BodyLine)), *map(_cells, lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows)


def _cells(line: BodyLine) -> tuple[str, ...]:
    return tuple(f"{value:.0f}" if isinstance(value, float) else str(value) for value in asdict(line).values())


def main(arguments: Sequence[str]) -> int:
    """Run the sweep that the command line describes. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.body_sweep", description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=Path, default=Path("build/zoo"), help="folder that keeps the saved models")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="sizes of the documents in KiB")
    parser.add_argument("--out", type=Path, help="folder for bodies.json and bodies.txt")
    options = parser.parse_args(arguments)
    folder = options.models / "plain"
    process = multiprocessing.get_context("spawn").Process(target=save_operations, args=(MODELS, folder))
    process.start()
    process.join()
    lines: list[BodyLine] = []
    with tempfile.TemporaryDirectory() as scratch:
        paths = [folder / name for name in MODELS]
        with zoo_server(paths, Path(scratch) / "log", PATIENCE_S) as server:
            for line in sweep_bodies(server, options.sizes):
                lines.append(line)
                if line.fault:
                    print("  ".join(_cells(line)), flush=True)
    largest = max(line.kilobytes for line in lines)
    print(text_table([line for line in lines if line.kilobytes == largest]), end="")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "bodies.json").write_text(json.dumps([asdict(line) for line in lines], indent=1) + "\n")
        (options.out / "bodies.txt").write_text(text_table(lines))
    return int(any(line.fault for line in lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
