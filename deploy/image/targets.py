"""Targets of the Dockerfile: the locks and the project that each installs, and the limit of its image."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A target of the Dockerfile.

    `image` is its title. `removed` are packages of the locks that it uninstalls. `project` is the directory of the
    main distribution. `largest_bytes` limits the unpacked image, with the base image. `platforms` are those that its
    locks have wheels for.
    """

    name: str
    image: str
    largest_bytes: int
    locks: tuple[str, ...]
    removed: tuple[str, ...] = ()
    project: str = "server"
    platforms: tuple[str, ...] = ("linux/amd64", "linux/arm64")

    @property
    def projects(self) -> tuple[str, ...]:
        """The directories of the distributions in the image."""
        return ("formats", "clients/command", self.project, "clients/python")


# libtpu and hdrhistogram have no wheels for arm64.
_AMD64 = ("linux/amd64",)

TARGETS = {
    target.name: target
    for target in (
        Target("cpu", "tpuserve-server", 1_800_000_000, ("server", "client"), ("libclang",)),
        Target("pjrt", "tpuserve-server-pjrt", 700_000_000, ("pjrt", "client"), ("scipy",)),
        Target(
            "tpu",
            "tpuserve-server-tpu",
            3_100_000_000,
            ("server", "tpu", "client"),
            ("libclang", "scipy"),
            platforms=_AMD64,
        ),
        Target("cuda", "tpuserve-server-cuda", 8_000_000_000, ("server", "cuda", "client"), ("libclang", "scipy")),
        Target("exporter", "tpuserve-exporter", 2_800_000_000, ("exporter", "client"), ("libclang",), "exporter"),
        Target(
            "loadtests",
            "tpuserve-loadtests",
            400_000_000,
            ("loadtests", "client"),
            project="loadtests",
            platforms=_AMD64,
        ),
    )
}
