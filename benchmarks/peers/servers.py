"""The compared servers: start command, protocols and batching of each."""

import contextlib
import importlib.metadata
import os
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import environments
from benchmarks.harness.process_tree import ProcessTree, started
from benchmarks.harness.targets import ROOT, Protocol, echoes, free_port, model_server
from benchmarks.peers.wire import (
    INFER_BINARY,
    INFER_GRPC,
    INFER_REST,
    PREDICT_GRPC,
    PREDICT_REST,
    ROW_REST,
    ROWS_REST,
    Wire,
)

PROGRAMS = ROOT / "benchmarks" / "peers"


@dataclass(frozen=True, slots=True)
class Subject:
    """A server to measure. The first HTTP wire sends JSON. `batching` describes its batching settings for the report.

    `package` is the distribution whose version is reported. `is_ours` is set only for tpuserve, `checkout` only
    for tpuserve from another checkout of this repository, and `modules` only for tpuserve with the compiled modules of
    that directory. `is_echo`: it answers each request with its own body. A peer is the `program` in the directory of
    its environment below `peers/`, which is `shares` if two peers share it, and `name` otherwise.
    """

    name: str
    title: str
    wires: tuple[Wire, ...]
    batching: str
    package: str
    loopback_only: bool = False
    is_ours: bool = False
    checkout: Path | None = None
    modules: Path | None = None
    is_echo: bool = False
    program: str = "server.py"
    shares: str = ""

    @property
    def environment(self) -> str:
        """Name of the environment of a peer below .peers/."""
        return self.shares or self.name


@dataclass(frozen=True, slots=True)
class Serving:
    """A running subject: its processes, and the port on loopback for each of its protocols."""

    subject: Subject
    tree: ProcessTree
    ports: dict[Protocol, int]


_OURS = (PREDICT_REST, PREDICT_GRPC, INFER_REST, INFER_GRPC, INFER_BINARY)

SUBJECTS = (
    Subject(
        "tpuserve",
        "tpuserve",
        _OURS,
        "defaults: at most 32 rows; a batch starts as soon as the model is idle",
        "tpuserve-server",
        is_ours=True,
    ),
    Subject(
        "triton",
        "Triton (PyTriton)",
        (INFER_REST, INFER_GRPC, INFER_BINARY),
        "dynamic batcher, at most 32 rows, no added delay (its default)",
        "nvidia-pytriton",
    ),
    Subject(
        "triton-c",
        "Triton, backend in C",
        (INFER_REST, INFER_GRPC, INFER_BINARY),
        "same as PyTriton's; one instance on the CPU. The version is that of PyTriton, whose wheel has the server",
        "nvidia-pytriton",
        program="c_server.py",
        shares="triton",
    ),
    Subject(
        "mlserver",
        "MLServer",
        (INFER_REST, INFER_GRPC),
        "adaptive batching, at most 32 requests or 1 ms; in process (`parallel_workers` 0), uvloop",
        "mlserver",
    ),
    Subject(
        "litserve",
        "LitServe",
        (ROW_REST,),
        "at most 32 requests or 1 ms; one worker, one front-end process",
        "litserve",
    ),
    Subject(
        "bentoml",
        "BentoML",
        (ROWS_REST,),
        "adaptive batching, at most 32 rows, `max_latency_ms` 10,000 to prevent refusals; one worker",
        "bentoml",
    ),
    Subject(
        "ray",
        "Ray Serve",
        (ROW_REST,),
        "`serve.batch`, at most 32 requests or 1 ms; one replica, one proxy",
        "ray",
        loopback_only=True,
    ),
    Subject(
        "kserve",
        "KServe SDK",
        (PREDICT_REST, INFER_REST, INFER_GRPC, INFER_BINARY),
        "none: the SDK has no batching; one worker",
        "kserve",
        loopback_only=True,
    ),
)


def parent(checkout: Path) -> Subject:
    """Return the server of another checkout of this repository, which has its own `.venv`."""
    return Subject(
        "parent", "tpuserve, parent", _OURS, "its defaults", "tpuserve-server", is_ours=True, checkout=checkout
    )


def with_modules(modules: Path) -> Subject:
    """Return the server with the compiled modules of the directory that `make compiled` has unpacked."""
    return Subject(
        "compiled", "tpuserve, compiled", _OURS, "its defaults", "tpuserve-server", is_ours=True, modules=modules
    )


ECHO = Subject("echo", "byte echo on h2corn", (PREDICT_REST, PREDICT_GRPC), "none", "h2corn", is_echo=True)


def server_program(checkout: Path) -> Path:
    """Return the path of the server of a checkout."""
    return checkout / ".venv" / "bin" / "tpuserve-serve"


def version(subject: Subject) -> str:
    """Return the measured release from the peer's lock or from our own distribution, or a checkout's commit, if any."""
    if subject.checkout is not None:
        command = ["git", "-C", str(subject.checkout), "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    if subject.is_ours or subject.is_echo:
        return importlib.metadata.version(subject.package)
    return environments.pinned(subject.environment, subject.package)


@contextlib.contextmanager
def serving(subject: Subject, version: Path, scratch: Path) -> Iterator[Serving]:
    """Start the subject with the model in the directory `version`. It may not be ready yet."""
    if subject.is_echo:
        with echoes(scratch) as targets:
            ports = {protocol: target.port for protocol, target in targets.items()}
            yield Serving(subject, targets["grpc"].tree, ports)
        return
    if subject.is_ours:
        program = [str(server_program(subject.checkout))] if subject.checkout else []
        environment = {"PYTHONPATH": str(subject.modules)} if subject.modules else {}
        with model_server(version.parent, scratch, program=program, environment=environment) as targets:
            ports = {protocol: target.port for protocol, target in targets.items()}
            yield Serving(subject, targets["grpc"].tree, ports)
        return
    ports = {"rest": free_port(), "grpc": free_port()}
    program = [str(environments.python(subject.environment)), str(PROGRAMS / subject.environment / subject.program)]
    command = [*program, str(version), *map(str, ports.values())]
    with started(command, scratch / f"{subject.name}.log", peer_environment(subject.environment, scratch)) as tree:
        yield Serving(subject, tree, ports)


def peer_environment(name: str, scratch: Path) -> dict[str, str]:
    """Return the environment of a peer's program, without our own packages and without usage reports."""
    programs = environments.python(name).parent
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return inherited | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(PROGRAMS),
        # Triton's Python stub loads the first libpython that it finds, which must be this interpreter's.
        "LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR")),
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "DO_NOT_TRACK": "1",
        "BENTOML_DO_NOT_TRACK": "True",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": str(scratch),
    }
