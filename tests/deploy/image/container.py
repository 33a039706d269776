"""A container that runs a server from an image, with as few rights as possible."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.image.engine import Engine, image, limits

READY = "tpuserve is ready"
# A user that no image knows, as OpenShift and `docker run --user` choose them.
RANDOM_USER = "1000730000:0"
# Without a network, the server has the image's own ports, and only programs in the container reach them.
CONFINED = (
    "--read-only", "--read-only-tmpfs=false", "--tmpfs=/tmp", "--cap-drop=all", "--security-opt=no-new-privileges",
    "--network=none",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Container:
    """A container whose server is ready."""

    engine: Engine
    name: str

    def run(self, *command: str, text: str | None = None) -> str:
        """Run a command in the container, with `text` as standard input. Return its standard output.

        Raises:
            RuntimeError: It failed.
        """
        return self.engine.podman("exec", "--interactive", self.name, *command, text=text).stdout

    def predict(self, model: str, body: dict[str, object], address: str = "localhost:8500") -> dict[str, list[object]]:
        """Predict with the image's own client. Return the decoded outputs."""
        arguments = ("tpuserve", "predict", model, "--input", "-", "--json", "--address", address)
        outputs = json.loads(self.run(*arguments, text=json.dumps(body)))["outputs"]
        assert isinstance(outputs, dict)
        return outputs

    def health(self) -> int:
        """Run the image's health check. Return its status, 0 if healthy."""
        return self.engine.podman("healthcheck", "run", self.name, check=False).returncode

    def log(self) -> str:
        """Return the server's output up to now."""
        read = self.engine.podman("logs", self.name)
        return read.stdout + read.stderr

    def terminate(self) -> int:
        """Send SIGTERM, wait for the end and return the exit status."""
        self.engine.podman("kill", "--signal=TERM", self.name)
        return int(self.engine.podman("wait", self.name).stdout)


@contextmanager
def running_server(
    engine: Engine,
    target: str,
    models: Path,
    *flags: str,
    options: tuple[str, ...] = CONFINED,
    user: str = RANDOM_USER,
    name: str = "server",
) -> Iterator[Container]:
    """Start a server of the models in a directory, and wait until it is ready. Remove the container at the end.

    Raises:
        RuntimeError: The server ended. The message contains its output.
    """
    mount = f"--volume={models}:/models:ro"
    engine.podman(
        "run", "--detach", f"--name={name}", f"--user={user}", *options, *limits(), mount, image(target), *flags
    )
    container = Container(engine, name)
    try:
        _wait_until_ready(container)
        yield container
    finally:
        engine.podman("rm", "--force", "--time=0", name)


def _wait_until_ready(container: Container) -> None:
    """Read the server's output up to the line that reports readiness, or to the end."""
    command = container.engine.command("logs", "--follow", container.name)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as follower:
        assert follower.stdout is not None
        read = []
        for line in follower.stdout:
            read.append(line)
            if line.strip() == READY:
                follower.terminate()
                return
    raise RuntimeError(f"{container.name} ended:\n{''.join(read)}")
