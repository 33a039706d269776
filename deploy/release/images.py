"""Images of a release: one archive for each target and platform, by Docker or podman."""

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from deploy.image.targets import TARGETS
from deploy.installation.wheels import ROOT

Engine: TypeAlias = Literal["docker", "podman"]
PLATFORMS: Final = ("linux/amd64", "linux/arm64")


@dataclass(frozen=True, slots=True)
class ImageBuild:
    """One image: its target, its platform, and the file of its archive."""

    target: str
    platform: str
    archive: Path

    def commands(self, engine: Engine, version: str, commit: str, epoch_s: int) -> Iterator[list[str]]:
        """Yield the commands that build the image and write the archive.

        `docker-archive` keeps HEALTHCHECK, which the format of OCI does not have.
        """
        name = f"{TARGETS[self.target].image}:{version}-{self.platform.partition('/')[2]}"
        common = [
            f"--platform={self.platform}", f"--target={self.target}", f"--build-arg=VERSION={version}",
            f"--build-arg=REVISION={commit}", f"--tag={name}",
        ]  # fmt: skip
        if engine == "docker":
            epoch = f"--build-arg=SOURCE_DATE_EPOCH={epoch_s}"
            output = f"--output=type=docker,dest={self.archive},rewrite-timestamp=true"
            yield ["docker", "buildx", "build", *common, epoch, output, str(ROOT)]
        else:
            yield ["podman", "build", "--format=docker", f"--timestamp={epoch_s}", *common, str(ROOT)]
            yield ["podman", "save", "--format=docker-archive", f"--output={self.archive}", name]


def plan_images(directory: Path, targets: Sequence[str], platforms: Sequence[str], version: str) -> list[ImageBuild]:
    """Return the images of the targets for the platforms that their locks have wheels for."""
    return [
        ImageBuild(target, platform, directory / f"{TARGETS[target].image}-{version}-{platform.replace('/', '-')}.tar")
        for target in targets
        for platform in platforms
        if platform in TARGETS[target].platforms
    ]


def build_images(images: Sequence[ImageBuild], engine: Engine, version: str, commit: str, epoch_s: int) -> None:
    """Build the images. Raises subprocess.CalledProcessError, after the engine has printed the reason."""
    for image in images:
        image.archive.unlink(missing_ok=True)
        for command in image.commands(engine, version, commit, epoch_s):
            subprocess.run(command, cwd=ROOT, check=True)
