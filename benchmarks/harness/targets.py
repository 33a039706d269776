"""Targets of the measurements: the model server and the byte echo, on free loopback ports."""

import contextlib
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from benchmarks.harness import ensemble_model, image_model, mlp_model
from benchmarks.harness.model_config import config_entry, config_list
from benchmarks.harness.process_tree import ProcessTree, ServerDied, started

if TYPE_CHECKING:
    from tests.support.certificates import Pem

Protocol: TypeAlias = Literal["grpc", "rest"]
# The model server, the same with a response cache, the same model as an ensemble of two steps, the server with TLS, and
# the byte echo.
Kind: TypeAlias = Literal["server", "cache", "ensemble", "tls", "echo"]

PROTOCOLS: tuple[Protocol, ...] = ("grpc", "rest")
ROOT = Path(__file__).resolve().parents[2]
MODEL_NAME = "mlp"
GRPC_PATH = "/tensorflow.serving.PredictionService/Predict"
REST_PATH = f"/v1/models/{MODEL_NAME}:predict"
READY_TIMEOUT_S = 120.0
# Pause between attempts to connect. The benchmark notices at once if the process dies.
_RETRY_S = 0.05


@dataclass(frozen=True, slots=True)
class Target:
    """One protocol of one running server."""

    kind: Kind
    protocol: Protocol
    port: int
    tree: ProcessTree
    has_tls: bool = False


@contextlib.contextmanager
def echoes(scratch: Path, tls: "Pem | None" = None) -> Iterator[dict[Protocol, Target]]:
    """Start the byte echo on h2corn, which serves both protocols on one port.

    With `tls`, it uses that certificate and refuses connections without TLS.
    """
    port = free_port()
    options = [f"--certfile={tls.cert}", f"--keyfile={tls.key}"] if tls else []
    with asgi_server("benchmarks.harness.echo_asgi:app", port, scratch / "echo.log", *options) as tree:
        targets = _pair("echo", tree, port, port)
        for target in targets.values():
            wait_until_ready(target, is_open if tls else lambda port: _posts(port, REST_PATH))
        yield targets


def asgi_server(
    app: str, port: int, log: Path, *options: str, environment: Mapping[str, str] | None = None
) -> contextlib.AbstractContextManager[ProcessTree]:
    """Run an ASGI application of the benchmarks on h2corn, for gRPC and REST on one port. It may not be ready yet."""
    command = [_program("h2corn"), app, f"--bind=127.0.0.1:{port}", "--grpc", "--loop=uvloop", "--runtime-threads=1"]
    command += ["--lifespan=off", "--no-access-log", *options]
    return started(command, log, os.environ | {"PYTHONPATH": str(ROOT)} | dict(environment or {}))


@contextlib.contextmanager
def model_server(
    model_base: Path,
    scratch: Path,
    *flags: str,
    name: str = MODEL_NAME,
    kind: Kind = "server",
    environment: Mapping[str, str] | None = None,
    ready_timeout_s: float = READY_TIMEOUT_S,
    program: Sequence[str] = (),
) -> Iterator[dict[Protocol, Target]]:
    """Run `tpuserve serve` with the model, and wait until it is ready. Adds `environment` to this process's own.

    `kind` names the server in its targets and its log. A server of kind `tls` gets its certificate from the flags, and
    opens its ports when it is ready. `program` is a command with arguments that replaces
    `tpuserve serve`. It gets the same flags.
    """
    grpc_port, rest_port = free_port(), free_port()
    command = [
        *(program or (_program("tpuserve-serve"),)),
        f"--port={grpc_port}",
        f"--rest_api_port={rest_port}",
        f"--model_name={name}",
        f"--model_base_path={model_base}",
        "--bind_address=127.0.0.1",
        *(("--ports_wait_for_models",) if kind == "tls" else ()),
        *flags,
    ]
    with started(command, scratch / f"{kind}-{grpc_port}.log", os.environ | dict(environment or {})) as tree:
        targets = _pair(kind, tree, grpc_port, rest_port)
        for target in targets.values():
            probe = is_open if target.has_tls else lambda port: answers_get(port, "/readyz")
            wait_until_ready(target, probe, ready_timeout_s)
        yield targets


def write_model(base: Path, scratch: Path, deep_layers: int = 0) -> None:
    """Write the MLP's SavedModel below `base` in a separate process, because that needs TensorFlow."""
    _write(base, scratch, str(mlp_model.__file__), str(base), str(deep_layers))


def write_ensemble(mlp_base: Path, scratch: Path) -> Path:
    """Write the first step of the ensemble whose second step is the MLP, and return their configuration file."""
    base = scratch / "models" / ensemble_model.CLIP
    _write(base, scratch, str(ensemble_model.__file__), str(base))
    path = scratch / "ensemble.config"
    path.write_text(ensemble_model.configuration(MODEL_NAME, base, mlp_base))
    return path


def write_image(mlp_base: Path, scratch: Path) -> Path:
    """Write the image model if it does not exist, and return a configuration file with it and the MLP."""
    base = scratch / "models" / image_model.NAME
    if not base.exists():
        _write(base, scratch, str(image_model.__file__), str(base))
    path = scratch / "image.config"
    path.write_text(config_list(config_entry(MODEL_NAME, mlp_base), config_entry(image_model.NAME, base)))
    return path


def write_with(program: Path, base: Path, scratch: Path) -> None:
    """Write a model below `base` with a program of the benchmarks, which needs TensorFlow, in a separate process."""
    _write(base, scratch, str(program), str(base))


def _write(base: Path, scratch: Path, *command: str) -> None:
    with started([sys.executable, *command], scratch / "model.log", os.environ | {"PYTHONPATH": str(ROOT)}) as tree:
        tree.process.wait(READY_TIMEOUT_S)
        if not (base / str(mlp_model.VERSION) / "assets.extra" / "tpuserve" / "manifest.json").exists():
            raise ServerDied(f"The benchmark did not write its model:\n{tree.log_tail()}")


def free_port() -> int:
    """Return a TCP port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def http_get(port: int, path: str) -> bytes:
    """Return the body of a GET on loopback. Raises OSError (such as urllib's) for any status other than 2xx."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as response:
        return bytes(response.read())


def http_post(port: int, path: str, body: bytes) -> bytes:
    """Return the response body of a JSON POST on loopback. Raises OSError for any status other than 2xx."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return bytes(response.read())


def _pair(kind: Kind, tree: ProcessTree, grpc_port: int, rest_port: int) -> dict[Protocol, Target]:
    return {
        "grpc": Target(kind, "grpc", grpc_port, tree, has_tls=kind == "tls"),
        "rest": Target(kind, "rest", rest_port, tree, has_tls=kind == "tls"),
    }


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _posts(port: int, path: str) -> None:
    http_post(port, path, b"{}")


def answers_get(port: int, path: str) -> None:
    http_get(port, path)


def wait_until_ready(
    target: Target, probe_http: Callable[[int], None], ready_timeout_s: float = READY_TIMEOUT_S
) -> None:
    try:
        # For gRPC an open port is enough here: the benchmark checks responses before and after the measurement.
        _retry(target, is_open if target.protocol == "grpc" else probe_http, ready_timeout_s)
    except ServerDied as error:
        raise ServerDied(f"The {target.kind} {error}") from None


def is_open(port: int) -> None:
    """Connect once. Raises OSError if nothing listens."""
    socket.create_connection(("127.0.0.1", port), timeout=1).close()


def _retry(target: Target, attempt: Callable[[int], None], timeout_s: float) -> None:
    for _ in range(int(timeout_s / _RETRY_S)):
        target.tree.check_alive()
        try:
            attempt(target.port)
        except OSError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                target.tree.process.wait(_RETRY_S)
        else:
            return
    raise ServerDied(f"did not respond within {timeout_s:.0f} s:\n{target.tree.log_tail()}")
