"""`python -m deploy.release`: build the artifacts of a release into a directory, and verify one."""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import click
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from deploy.image import sbom
from deploy.image.targets import TARGETS
from deploy.installation.wheels import ROOT
from deploy.release.images import PLATFORMS, Engine, build_images, plan_images
from deploy.release.packages import NotReproducible, build_packages
from deploy.release.provenance import Build, verify_release, write_signatures
from tpuserve_command import __version__
from tpuserve_formats.signing.errors import BadKey, BadSignature
from tpuserve_formats.signing.keys import key_id, read_private_key

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group(context_settings=_CONTEXT)
def main() -> None:
    """Build and verify releases of tpuserve."""


@main.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--key", type=click.Path(path_type=Path), help="ECDSA key: tpuserve keygen FILE --type ecdsa-p256.")
@click.option("--image", "targets", multiple=True, type=click.Choice(list(TARGETS)), help="Build an image; repeatable.")
@click.option("--platform", "platforms", multiple=True, type=click.Choice(PLATFORMS), help="[default: both]")
@click.option("--engine", type=click.Choice(get_args(Engine)), default="docker", show_default=True)
@click.option("--repository", default="https://github.com/example/tpuserve", show_default=True, help="For provenance.")
@click.option("--builder", default="local", show_default=True, help="URI of the builder, for provenance.")
@click.option(
    "--sbom/--no-sbom", "with_sbom", default=True, help="Write the SBOM of each image; needs a package index."
)
@click.option("--allow-dirty", is_flag=True, help="Build although files differ from the commit.")
@click.option("--dry-run", is_flag=True, help="Print the steps, and write nothing.")
def build(
    directory: Path,
    key: Path | None,
    targets: Sequence[str],
    platforms: Sequence[str],
    engine: Engine,
    repository: str,
    builder: str,
    with_sbom: bool,
    allow_dirty: bool,
    dry_run: bool,
) -> None:
    """Build the release of the checked-out commit into DIRECTORY.

    Wheels, constraints and source distributions, which the command builds again and compares; images, if you name
    their targets; software bills of materials; checksums; and with --key, a signed provenance and a signature.
    """
    commit, epoch_s = _git("rev-parse", "HEAD"), int(_git("log", "-1", "--format=%ct"))
    private = None if key is None else _read_key(key)
    images = plan_images(directory, targets, platforms or PLATFORMS, __version__)
    if dry_run:
        for line in (
            f"packages of version {__version__}, commit {commit}, SOURCE_DATE_EPOCH={epoch_s}",
            *(shlex.join(each) for one in images for each in one.commands(engine, __version__, commit, epoch_s)),
            *(f"SBOM of {TARGETS[name].image}" for name in TARGETS if with_sbom),
            "checksums" if key is None else f"checksums, provenance and signature with {key}",
        ):
            click.echo(line)
        return
    if (changed := _git("status", "--porcelain")) and not allow_dirty:
        raise click.ClickException(f"files differ from commit {commit}. Commit them first:\n{changed}")
    if directory.exists() and any(directory.iterdir()):
        raise click.ClickException(f"{directory} is not empty. Name a new directory")
    directory.mkdir(parents=True, exist_ok=True)
    try:
        build_packages(directory, epoch_s)
        build_images(images, engine, __version__, commit, epoch_s)
        if with_sbom:
            sbom.main(directory / "sbom", ())
    except NotReproducible as error:
        raise click.ClickException(str(error)) from error
    except subprocess.CalledProcessError as error:
        raise click.ClickException(f"{shlex.join(map(str, error.cmd))} exited with {error.returncode}") from error
    parameters = {"images": [f"{image.target} {image.platform}" for image in images]}
    facts = Build(repository, commit, __version__, epoch_s, builder, parameters)
    write_signatures(directory, facts, private)
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        click.echo(path)


@main.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--key", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=True, help="Public key.")
def verify(directory: Path, key: Path) -> None:
    """Compare every file in DIRECTORY with its signed provenance."""
    try:
        commit, signer = verify_release(directory, key.read_bytes(), str(key))
    except (BadSignature, BadKey) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"release of commit {commit}, signed by {signer}")


def _read_key(path: Path) -> EllipticCurvePrivateKey:
    try:
        key = read_private_key(path)
    except BadKey as error:
        raise click.ClickException(str(error)) from error
    if not isinstance(key, EllipticCurvePrivateKey):
        raise click.ClickException(
            f"{key_id(key.public_key())} is no ECDSA key: tpuserve keygen FILE --type ecdsa-p256"
        )
    return key


def _git(*arguments: str) -> str:
    return subprocess.run(("git", *arguments), cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(prog_name="python -m deploy.release"))
