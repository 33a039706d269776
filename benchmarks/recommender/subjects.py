"""The recommender's versions, the servers that serve them, and the protocols over which they are measured."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

import numpy as np

from benchmarks.harness import environments
from benchmarks.harness.measurement import WrongAnswer
from benchmarks.harness.process_tree import ProcessTree, ServerDied, started
from benchmarks.harness.targets import ROOT, Protocol, Target, answers_get, free_port, model_server, wait_until_ready
from benchmarks.peers.servers import PROGRAMS, peer_environment
from benchmarks.recommender.dlrm import DENSE, DENSE_FEATURES, HOTNESS, SCORE, SHAPES, TABLES, requests, scores, weights
from tpuserve_client import Client

NAME: Final = "recommender"
Source: TypeAlias = Literal["keras", "flax"]
# The servers compute with other kernels than numpy.
TOLERANCE: Final = 1e-4
_PEER: Final = "triton"
_PREFIXES: Final[Mapping[str, tuple[Protocol, str]]] = {
    "gRPC": ("grpc", ""),
    "OIP, gRPC": ("grpc", "oip+grpc://"),
    "REST": ("rest", "http://"),
    "OIP, HTTP, binary": ("rest", "oip+http://"),
}
WIRES: Final = tuple(_PREFIXES)
_OIP: Final = ("OIP, gRPC", "OIP, HTTP, binary")


@dataclass(frozen=True, slots=True)
class Subject:
    """A server with a version. `runtime` names the loop of model_loop.py with the same program."""

    name: str
    title: str
    source: Source
    runtime: str
    wires: tuple[str, ...]
    flags: tuple[str, ...] = ()


SUBJECTS: Final = (
    Subject("keras", "tpuserve, Keras on TensorFlow", "keras", "tensorflow", WIRES),
    Subject("flax", "tpuserve, Flax as device programs", "flax", "pjrt", WIRES, ("--device=cpu",)),
    Subject("triton", "Triton in C++, Keras on TensorFlow", "keras", "tensorflow", _OIP),
)


@dataclass(frozen=True, slots=True)
class Serving:
    """A running subject."""

    subject: Subject
    tree: ProcessTree
    ports: dict[Protocol, int]

    def address(self, wire: str) -> tuple[Protocol, str]:
        """Return the option of `tpuserve loadtest` for a wire, and its value."""
        protocol, prefix = _PREFIXES[wire]
        return protocol, f"{prefix}127.0.0.1:{self.ports[protocol]}"

    def check(self, shape: str) -> None:
        """Send eight items over each wire. Raises WrongAnswer if the scores are not numpy's."""
        items = requests(SHAPES[shape], 8)
        expected = scores(SHAPES[shape], weights(SHAPES[shape]), items)
        for wire in self.subject.wires:
            with Client(self.address(wire)[1], timeout_s=60) as client:
                got = client.predict(NAME, items)[SCORE].reshape(-1)
            if not np.allclose(got, expected, atol=TOLERANCE):
                raise WrongAnswer(f"{self.subject.title}, {wire}: expected {expected}, got {got}")


@contextlib.contextmanager
def serving(subject: Subject, base: Path, scratch: Path) -> Iterator[Serving]:
    """Serve the version below `base` for the duration of the block. Raises ServerDied."""
    if subject.name != _PEER:
        with model_server(base, scratch, *subject.flags, name=NAME) as targets:
            ports = {protocol: target.port for protocol, target in targets.items()}
            yield Serving(subject, targets["grpc"].tree, ports)
        return
    if not environments.is_ready(_PEER):
        environments.build(_PEER)
    ports = {"rest": free_port(), "grpc": free_port()}
    program = [str(environments.python(_PEER)), str(PROGRAMS / _PEER / "tensorflow_server.py"), str(base / "1"), NAME]
    command = [*program, *map(str, ports.values())]
    with started(command, scratch / f"{_PEER}.log", peer_environment(_PEER, scratch)) as tree:
        wait_until_ready(
            Target("server", "rest", ports["rest"], tree), lambda port: answers_get(port, "/v2/health/ready")
        )
        yield Serving(subject, tree, ports)


def find_or_export(source: Source, shape: str, folder: Path) -> Path:
    """Return the base path of the version below `folder`, which is exported if it does not exist. Takes minutes.

    Raises ServerDied if the export fails.
    """
    base = folder / shape / "models" / source
    if (base / "1").exists():
        return base
    saved = folder / shape / ("model.keras" if source == "keras" else "checkpoints")
    saved.parent.mkdir(parents=True, exist_ok=True)
    if not saved.exists():
        _run("python", "-m", f"benchmarks.recommender.{source}_model", shape, str(saved))
    _run("tpuserve-export", str(saved), str(base), *export_options(source, shape))
    return base


def export_options(source: Source, shape: str) -> list[str]:
    """Return the options of `tpuserve export`. A Keras file describes its inputs, a checkpoint of Flax does not."""
    if source == "keras":
        return []
    model = ["--model", "benchmarks.recommender.flax_model:build", "--model-arg", f"shape={shape}"]
    described = [f"{DENSE}:float32[batch,{DENSE_FEATURES}]"]
    described += [f"{name}:int32[batch,{hot}]" for name, hot in zip(TABLES, HOTNESS, strict=True)]
    return [*model, "--device-programs", *(option for one in described for option in ("--input", one))]


def _run(program: str, *arguments: str) -> None:
    command = [str(Path(sys.executable).with_name(program)), *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServerDied(f"{program} failed:\n{(done.stdout + done.stderr)[-1500:]}")
