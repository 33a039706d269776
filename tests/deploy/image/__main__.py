"""`python -m tests.deploy.image [TARGET...]`: build images, use them together, and print a table of them.

The exporter's image exports the digits model with device programs. Each server's image serves that version, and the
load tester's image loads the server. All run as user 65532 with as few rights as possible.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deploy.image.targets import TARGETS
from tests.deploy.dockerfile import ROOT
from tests.deploy.image.container import CONFINED, running_server
from tests.deploy.image.engine import Engine, image, limits, running_engine
from tests.support.free_ports import free_ports
from tpuserve_client import Client

USER = "65532:65532"
# The commands of the tools reach servers, and the table's clients too.
REACHABLE = (*(option for option in CONFINED if option != "--network=none"), "--network=host")

HEADINGS = "| Target | Unpacked size | Build | Start to first prediction | User | Capabilities |"


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table."""

    target: str
    size_bytes: int
    build_s: float
    start_s: float | None
    user: str
    capabilities: str

    def __str__(self) -> str:
        start = "" if self.start_s is None else f"{self.start_s:.1f} s"
        size = f"{self.size_bytes / 1e9:.2f} GB"
        return f"| `{self.target}` | {size} | {self.build_s:.0f} s | {start} | {self.user} | {self.capabilities} |"


def main(names: Sequence[str]) -> None:
    """Build the targets, by default all. Print what each build removed, the ends of runs, and the table's rows."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, running_engine() as engine:
        work = Path(folder)
        work.chmod(0o755)
        built = {"exporter": build(engine, "exporter"), "loadtests": build(engine, "loadtests")}
        export_digits(engine, work)
        rows = [measure(engine, name, built.get(name), work) for name in names or TARGETS]
    print("", HEADINGS, "|---" * HEADINGS.count(" | ") + "|---|", *rows, sep="\n")


def build(engine: Engine, name: str) -> float:
    """Build a target, print the end of its log, and return the duration in seconds."""
    started_s = time.monotonic()
    lines = engine.build(name).splitlines()
    removed = [line for line in lines if line.startswith("Removed ")]
    print(f"\n== Built {name}", *removed, *lines[-2:], sep="\n", flush=True)
    return time.monotonic() - started_s


def run_tool(engine: Engine, target: str, *command: str, mounts: Sequence[str] = ()) -> str:
    """Run a command of a tool's image. Return its output."""
    volumes = [f"--volume={mount}" for mount in mounts]
    ran = engine.podman(
        "run", "--rm", f"--user={USER}", *REACHABLE, *limits(), *volumes, image(target), *command
    )  # fmt: skip
    return ran.stdout + ran.stderr


def export_digits(engine: Engine, work: Path) -> None:
    """Train on this machine, and export with the image."""
    train = [sys.executable, "examples/digits/train.py", "--out", str(work / "checkpoints")]
    subprocess.run(train, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    (work / "models").mkdir(mode=0o777)
    (work / "models").chmod(0o777)
    printed = run_tool(
        engine, "exporter", "export", "/checkpoints", "/models/digits", "--model", "examples.digits.model:build",
        "--device-programs", "--tpu", "v5e:1x1",
        mounts=(f"{work}/checkpoints:/checkpoints:ro", f"{work}/models:/models", f"{ROOT}/examples:/tmp/examples:ro"),
    )  # fmt: skip
    print("\n== Exported digits", *printed.splitlines()[-4:], sep="\n", flush=True)


def measure(engine: Engine, name: str, build_s: float | None, work: Path) -> Row:
    """Build a target if necessary, run it, and remove its image, because all of them together take many GB."""
    build_s = build(engine, name) if build_s is None else build_s
    described = engine.inspect(name)
    start_s = serve(engine, name, work) if TARGETS[name].project == "server" else None
    row = Row(name, described["Size"], build_s, start_s, described["Config"]["User"], capabilities(engine, name))
    print(row, flush=True)
    if TARGETS[name].project == "server":
        engine.podman("rmi", "--force", image(name))
        engine.podman("image", "prune", "--force")
    return row


def serve(engine: Engine, name: str, work: Path) -> float:
    """Start a server, predict, load it. Return the seconds from the start of the container to the first prediction."""
    grpc_port, rest_port = free_ports(2)
    flags = (
        "--bind_address=127.0.0.1", f"--port={grpc_port}", f"--rest_api_port={rest_port}",
        "--model_name=digits", "--model_base_path=/models/digits",
    )  # fmt: skip
    started_s = time.monotonic()
    with (
        running_server(engine, name, work / "models", *flags, options=REACHABLE, user=USER) as server,
        Client(f"127.0.0.1:{grpc_port}") as client,
    ):
        client.predict("digits", {"image": np.zeros((1, 8, 8, 1), np.float32)})
        start_s = time.monotonic() - started_s
        addresses = ("--grpc", f"127.0.0.1:{grpc_port}", "--rest", f"http://127.0.0.1:{rest_port}")
        loaded = run_tool(engine, "loadtests", "loadtest", "run", "digits", *addresses, "--duration", "5s")
        print(f"\n== Ran {name}", *loaded.splitlines()[-4:], *server.log().splitlines()[-3:], sep="\n", flush=True)
        if (status := server.terminate()) != 0:
            sys.exit(f"Exit status of {name} after SIGTERM: {status}\n{server.log()}")
    return start_s


def capabilities(engine: Engine, name: str) -> str:
    """Return the effective capabilities of a process in the image, "none" for an empty set."""
    command = ("run", "--rm", *CONFINED, *limits(), "--entrypoint=cat", image(name), "/proc/self/status")
    lines = engine.podman(*command).stdout.splitlines()
    (held,) = (line.split()[1] for line in lines if line.startswith("CapEff:"))
    return held if int(held, 16) else "none"


if __name__ == "__main__":
    main(sys.argv[1:])
