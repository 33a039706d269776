"""Podman with a separate storage, which builds the Dockerfile's targets and runs them."""

import json
import os
import resource
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.deploy.dockerfile import ROOT
from tests.deploy.image.base_image import write_base

_BASE = "localhost/base"
# Configuration of pip and uv, and certificates. This machine's additional ones are links from the first directory to
# the second.
_CONFIGURATION = ("/etc/pip.conf", "/etc/uv", "/etc/ssl/certs", "/usr/local/share/ca-certificates", "/etc/hosts")
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"


class Engine:
    """Podman as root. Images and containers are in `folder` and end with it.

    Builds run in a chroot, and share this machine's network and uv's cache. runc runs containers, because crun refuses
    machines that have both versions of cgroups.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._options = (
            f"--root={folder}/storage", f"--runroot={folder}/run", "--runtime=runc", "--cgroup-manager=cgroupfs",
            "--events-backend=file",
        )  # fmt: skip
        # Without systemd there are no timers for health checks. Tests run the checks themselves.
        self._environment = {**os.environ, "DISABLE_HC_SYSTEMD": "true", "TMPDIR": str(folder)}

    def command(self, *arguments: str | Path) -> list[str]:
        """Return the command line of a podman command."""
        return ["podman", *self._options, *map(str, arguments)]

    def podman(
        self, *arguments: str | Path, text: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a podman command, with `text` as standard input.

        Raises:
            RuntimeError: It failed. The message contains its output.
        """
        ran = subprocess.run(
            self.command(*arguments),
            env=self._environment,
            input=text or "",
            capture_output=True,
            text=True,
            check=False,
        )
        if check and ran.returncode != 0:
            raise RuntimeError(f"podman {arguments[0]}: status {ran.returncode}\n{ran.stdout}{ran.stderr}")
        return ran

    def make_base(self) -> None:
        """Make the base image of all targets."""
        archive = self._folder / "base.tar"
        write_base(archive)
        self.podman("import", "--change", f"ENV SSL_CERT_FILE={_CERTIFICATES}", archive, _BASE)
        archive.unlink()

    def build(self, target: str) -> str:
        """Build a target. Return the end of the build's log."""
        mounts = [f"--volume={path}:{path}:ro" for path in _CONFIGURATION if Path(path).exists()]
        # The format of OCI has no HEALTHCHECK.
        built = self.podman(
            "build", "--isolation=chroot", "--network=host", "--format=docker", f"--build-arg=PYTHON_IMAGE={_BASE}",
            *mounts, f"--volume={_uv_cache()}:/var/cache/uv", f"--target={target}", f"--tag={image(target)}", ROOT,
        )  # fmt: skip
        return built.stdout + built.stderr

    def inspect(self, target: str) -> dict[str, Any]:
        """Return podman's description of an image."""
        (described,) = json.loads(self.podman("image", "inspect", image(target)).stdout)
        assert isinstance(described, dict)
        return described

    @contextmanager
    def files(self, target: str) -> Iterator[Path]:
        """Mount the files of an image, and unmount them at the end."""
        mounted = self.podman("image", "mount", image(target)).stdout.strip()
        try:
            yield Path(mounted)
        finally:
            self.podman("image", "unmount", image(target))

    def close(self) -> None:
        """Remove all containers and images."""
        self.podman("rm", "--all", "--force", "--time=0", check=False)
        self.podman("rmi", "--all", "--force", check=False)


def image(target: str) -> str:
    """Return the name of a target's image."""
    return f"localhost/tpuserve-{target}"


def limits() -> tuple[str, ...]:
    """Return options that limit files and processes to numbers that podman may set.

    Podman would raise both limits, which needs a capability that root may lack, and lowers its own limit of processes.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return f"--ulimit=nofile={files}:{files}", "--ulimit=nproc=32768:32768"


@contextmanager
def running_engine() -> Iterator[Engine]:
    """Create an engine with the base image, and remove everything at the end."""
    # A short path, because podman's sockets are below it. On a disk, because images are large.
    with tempfile.TemporaryDirectory(prefix="tpuserve-", dir="/var/tmp") as folder:
        engine = Engine(Path(folder))
        try:
            engine.make_base()
            yield engine
        finally:
            engine.close()


def _uv_cache() -> str:
    """Return uv's cache on this machine, which saves downloads."""
    listed = subprocess.run([ROOT / ".venv/bin/uv", "cache", "dir"], check=True, capture_output=True, text=True)
    Path(listed.stdout.strip()).mkdir(parents=True, exist_ok=True)
    return listed.stdout.strip()
