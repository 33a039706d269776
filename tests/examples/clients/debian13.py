"""A Debian 13 in a directory, with Go, Java and C++. Its programs use this machine's network."""

import shutil
import subprocess
from pathlib import Path

from tests.deploy.image.base_image import write_debian

_PACKAGES = (
    "golang-go", "golang-google-grpc-dev", "golang-google-protobuf-dev", "protoc-gen-go-1-5", "protoc-gen-go-grpc",
    "default-jdk-headless", "libgrpc-java", "libprotobuf-java", "protobuf-compiler-grpc-java-plugin",
    "libgoogle-gson-java", "libnetty-java", "libperfmark-java",
    "g++", "pkg-config", "libgrpc++-dev", "libprotobuf-dev", "protobuf-compiler", "protobuf-compiler-grpc",
)  # fmt: skip
# Mount what the programs read, in a namespace that ends with them.
_INSIDE = 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"'


class Debian13:
    """The root directory. `work` is its directory `/work`, where programs start."""

    def __init__(self, root: Path) -> None:
        """Install the packages. Takes minutes, and 2 GB of disk.

        Raises:
            RuntimeError: The packages cannot be installed.
        """
        write_debian(root, "trixie", ",".join(_PACKAGES))
        self._root = root
        self.work = root / "work"
        self.work.mkdir()

    def run(self, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run lines of bash in `/work`. They end at the first line that fails."""
        variables |= {"HOME": "/root", "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
        command = [
            *("unshare", "--mount", "--fork", "bash", "-c", _INSIDE, str(self._root)),
            *(
                "env",
                "--ignore-environment",
                "--chdir=/work",
                *(f"{name}={value}" for name, value in variables.items()),
            ),
            *("bash", "-ec", script),
        ]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def remove(self) -> None:
        """Delete the directory."""
        shutil.rmtree(self._root)
