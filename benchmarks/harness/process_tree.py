"""Process trees of a benchmark: CPU time and memory from /proc, and reliable shutdown. Linux only."""

import contextlib
import ctypes
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

import psutil

STOP_TIMEOUT_S = 20.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of a process tree. RSS counts a shared page once per process, PSS divides it among them."""

    rss_mb: float
    pss_mb: float


class ServerDied(RuntimeError):
    """A server ended, or did not answer in time. The message ends with its last log lines."""


@dataclass(frozen=True, slots=True)
class ProcessTree:
    """A started process and its descendants."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def members(self) -> list[psutil.Process]:
        """The root and its living descendants."""
        try:
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def cpu_seconds(self) -> float:
        """Return the user and system time of the living members and of the children they have reaped."""
        members = self.members
        while True:
            seconds = sum(_cpu_seconds(member) for member in members)
            # If a member ends during the loop, its time may be missing or counted twice. Read the times again.
            before, members = members, self.members
            if members == before:
                return seconds

    def memory(self) -> Memory:
        """Return the current resident memory in MB of 10^6 bytes."""
        members = self.members
        rss = sum(_rss_bytes(member) for member in members)
        pss = sum(_pss_bytes(member.pid) for member in members)
        return Memory(rss_mb=rss / 1e6, pss_mb=pss / 1e6)

    def check_alive(self) -> None:
        """Raise ServerDied if the root has ended."""
        if self.process.poll() is not None:
            raise ServerDied(f"exited with code {self.process.returncode}:\n{self.log_tail()}")

    def log_tail(self) -> str:
        """Return the last lines of the tree's output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


@contextlib.contextmanager
def started(command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> Iterator[ProcessTree]:
    """Run a command for the duration of the block, and always end the whole tree afterwards.

    If this process is killed, the kernel sends SIGTERM to the started process.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=None if environment is None else dict(environment),
            preexec_fn=_die_with_parent,
            start_new_session=True,
        )
    tree = ProcessTree(process, log)
    try:
        yield tree
    finally:
        _stop(tree)


def exit_on_sigterm() -> None:
    """Make SIGTERM raise SystemExit, so that every `with` on the stack stops its processes."""
    signal.signal(signal.SIGTERM, _exit_on_signal)


def _exit_on_signal(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _stop(tree: ProcessTree) -> None:
    members = tree.members
    tree.process.terminate()
    try:
        tree.process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        tree.process.kill()
        tree.process.wait()
    # Kill the members that outlived the root or started during the stop.
    for member in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(members, timeout=STOP_TIMEOUT_S)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


def _rss_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _pss_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
