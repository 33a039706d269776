"""A run of the table: save, export, serve and query each model, group by group."""

import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import tpuserve_server
from tests.strangers.exporting import export, find_fault
from tests.strangers.line import Line, Verdict
from tests.strangers.predicting import predict_all
from tests.strangers.processes import Processes
from tests.strangers.saving import SavingFailed, programs, save
from tests.strangers.stranger import Answers, Export, Stranger, Unexported

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Published:
    """A version to serve, and the outputs of its source."""

    stranger: Stranger
    source: str
    model: str
    base_path: Path
    answers: Answers


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model after its exports: the versions to serve, and the lines of failed exports."""

    published: list[Published]
    lines: list[Line]


def run(groups: Sequence[Sequence[Stranger]], work: Path, jobs: int, report: Report) -> Iterator[Line]:
    """Yield the lines of all models. One server at a time serves the models of one group.

    `jobs` models are saved and exported concurrently, also while a server of earlier ones runs. `report` receives a
    phrase for each step.
    """
    processes = Processes()
    threads = ThreadPoolExecutor(jobs, "stranger")
    try:
        folders = [work / str(number) for number in range(len(groups))]
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        begun = [
            [threads.submit(_prepare, one, folder, processes, report) for one in group]
            for group, folder in zip(groups, folders, strict=True)
        ]
        for group, folder in zip(begun, folders, strict=True):
            published = []
            for future in group:
                prepared = future.result()
                yield from prepared.lines
                published += prepared.published
            yield from _serve(published, folder, report)
    finally:
        processes.stop()
        threads.shutdown(cancel_futures=True)


def _prepare(stranger: Stranger, group: Path, processes: Processes, report: Report) -> Prepared:
    """Save and export a model in its own directory."""
    folder = group / stranger.name
    folder.mkdir()
    started_s = time.monotonic()
    if programs(stranger) is None:
        report(f"{stranger.name}: skipped")
        line = Line(stranger.name, "", "", "export", Verdict.SKIPPED, "PyTorch is not installed. Run: make torch")
        return Prepared([], [line])
    try:
        answers = save(stranger, folder, processes)
    except SavingFailed as error:
        report(f"{stranger.name}: {error}")
        return Prepared([], [Line(stranger.name, "", "", "save", Verdict.WRONG, str(error))])
    report(f"{stranger.name}: saved in {time.monotonic() - started_s:.1f} s")
    published, lines = [], []
    for one in stranger.exports:
        started_s = time.monotonic()
        model = re.sub(r"[^\w.-]+", "_", f"{stranger.name}-{one.source}")
        line = _export(stranger, one, folder, folder / "models" / model, processes)
        lines.append(line)
        if line.verdict is Verdict.RIGHT:
            published.append(Published(stranger, one.source, model, folder / "models" / model, answers))
        seconds = time.monotonic() - started_s
        report(f"{stranger.name}, {one.source}: {line.verdict} in {seconds:.1f} s{line.reason and f': {line.reason}'}")
    if stranger.unexported is not None:
        lines.append(_serve_unexported(stranger, stranger.unexported, folder))
        report(f"{stranger.name}, unexported: {lines[-1].verdict}: {lines[-1].reason}")
    return Prepared(published, lines)


def _serve_unexported(stranger: Stranger, one: Unexported, folder: Path) -> Line:
    """Start a server with a SavedModel that it has to refuse."""
    version = folder / "unexported" / "1"
    shutil.copytree(folder / one.path, version)
    started_s = time.monotonic()
    try:
        log = folder / "server-unexported.log"
        with tpuserve_server.start({stranger.name: version.parent}, log_path=log, progress=False):
            verdict, reason = Verdict.WRONG, f"the server serves it, expected an error with {one.refusal!r}"
    except tpuserve_server.StartFailed as error:
        verdict, reason = Verdict.REFUSED if one.refusal in str(error) else Verdict.WRONG, str(error)
    seconds = time.monotonic() - started_s
    return Line(stranger.name, "unexported", "", "load", verdict, reason, seconds=seconds)


def _export(stranger: Stranger, one: Export, folder: Path, base_path: Path, processes: Processes) -> Line:
    base_path.parent.mkdir(exist_ok=True)
    started_s = time.monotonic()
    exported = export(stranger, one, folder, base_path, processes)
    fault = find_fault(exported, one)
    verdict = Verdict.WRONG if fault else Verdict.REFUSED if exported.exit_code else Verdict.RIGHT
    reason = fault or exported.error or "; ".join(f"warning: {warning}" for warning in exported.warnings)
    return Line(
        stranger.name, one.source, "", "export", verdict, reason, seconds=time.monotonic() - started_s
    )  # fmt: skip


def _serve(published: Sequence[Published], folder: Path, report: Report) -> Iterator[Line]:
    """Serve all versions on one server and query each. If the server does not start, serve each version alone.

    A version that is not served makes a wrong line. If a version ends the server, another server serves the rest.
    """
    if not published:
        return
    base_paths = {one.model: one.base_path for one in published}
    log = folder / f"server-{published[0].model}.log"
    report(f"starting a server with {len(published)} version(s)")
    rest = list(published)
    try:
        with tpuserve_server.start(base_paths, log_path=log, progress=False) as server:
            while rest:
                one = rest.pop(0)
                yield from predict_all(one.stranger, one.source, one.model, one.answers, server)
                report(f"{one.stranger.name}, {one.source}: compared")
                if not server.is_running:
                    report(f"the server exited (see {log})")
                    break
    except tpuserve_server.StartFailed as error:
        if len(published) == 1:
            yield Line(published[0].stranger.name, published[0].source, "", "gRPC", Verdict.WRONG, str(error))
            return
        for one in published:
            yield from _serve([one], folder, report)
        return
    yield from _serve(rest, folder, report)
