"""The `tpuserve deploy vertex` command, which prints gcloud commands, and the options that `deploy render` shares."""

import importlib.metadata
import json
import re
from collections.abc import Iterable
from pathlib import Path

import click

from tpuserve_exporter.command.parameter_types import GS_URI, IMAGE, MACHINE_TYPE, TOPOLOGY
from tpuserve_exporter.command.running import report_error
from tpuserve_exporter.deployment.machines import VertexMachine
from tpuserve_exporter.deployment.names import Image, choose_name
from tpuserve_exporter.deployment.vertex_deployment import VertexDeployment, VertexVersion
from tpuserve_exporter.deployment.written_files import write_files
from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.options.store_uri import StoreUri
from tpuserve_exporter.options.tpu import TpuTopology

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

version_option = click.option(
    "--version",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path, readable=False),
    help="Version directory, such as models/digits/3.",
)
check_option = click.option(
    "--check",
    type=FILE,
    metavar="FILE",
    help="Document of `tpuserve check --tpu --json`, for a TPU that the export did not check.",
)
model_name_option = click.option(
    "--model-name", metavar="NAME", help="Name of the served model.  [default: that of the base path]"
)


_AUTHOR = f"`tpuserve deploy vertex` of tpuserve-exporter {importlib.metadata.version('tpuserve-exporter')}"
_MOST_REPLICAS = 10_000
_PROJECT = re.compile(r"([a-z0-9.-]+:)?[a-z0-9-]{4,30}", re.ASCII)
_REGION = re.compile(r"[a-z]+(-[a-z]+)+[0-9]+", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# Variables that the platform or this command sets.
_RESERVED = re.compile(r"AIP_.*|MODEL_NAME", re.ASCII)

_EPILOG = """\b
Examples:
  # a version on CPU machines, as a script
  tpuserve deploy vertex --version models/digits/3 --artifact-uri gs://bucket/models/digits/3 \\
      --project my-project --region us-central1 \\
      --image us-central1-docker.pkg.dev/my-project/images/tpuserve-server:0.1.0 \\
      --machine-type n1-standard-4 --output digits.sh
\b
  # the next version on one v5e chip, on the same endpoint
  tpuserve deploy vertex --version models/digits/4 --artifact-uri gs://bucket/models/digits/4 \\
      --project my-project --region us-west1 \\
      --image us-west1-docker.pkg.dev/my-project/images/tpuserve-server:0.1.0-tpu \\
      --tpu v5e:1x1 --endpoint digits

\b
Exit codes:
  0  the commands were printed or written
  1  unexpected error
  2  wrong usage, a TPU without a machine, or an artifact of another version
  4  the version was not checked for the TPU, or does not fit on the machine
  5  the output exists, or cannot be written
  6  no version, no device programs for a TPU, or a damaged file
  130  interrupted
"""
_REPLICAS = click.IntRange(1, _MOST_REPLICAS)


@click.command(epilog=_EPILOG, context_settings=SETTINGS)
@version_option
@click.option(
    "--artifact-uri",
    "artifact",
    required=True,
    type=GS_URI,
    help="The same version in Cloud Storage, such as gs://bucket/models/digits/3.",
)
@click.option("--project", required=True, metavar="ID", help="Project of Google Cloud.")
@click.option("--region", required=True, metavar="NAME", help="Region of Vertex AI, such as us-central1.")
@click.option("--image", required=True, type=IMAGE, help="Image of the server in Artifact Registry.")
@click.option("--machine-type", "machine", type=MACHINE_TYPE, help="Machine without a TPU, such as n1-standard-4.")
@click.option("--tpu", "topology", type=TOPOLOGY, help="TPU of each server: v5e or v6e in 1x1, 2x2, 2x4.")
@check_option
@click.option("--min-replicas", type=_REPLICAS, default=1, show_default=True, help="Smallest number of servers.")
@click.option(
    "--max-replicas", type=_REPLICAS, help="Largest number of servers, not with --tpu.  [default: --min-replicas]"
)
@click.option("--env", "variables", multiple=True, metavar="NAME=V", help="Environment variable of the server.")
@click.option("--endpoint", metavar="ID", help="Existing endpoint.  [default: create one with the model's name]")
@model_name_option
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of the script.  [default: standard output]",
)
@click.option("--force", is_flag=True, help="Replace the file in --output.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document with the commands as arrays of words.")
def vertex(
    version: Path,
    artifact: StoreUri,
    project: str,
    region: str,
    image: Image,
    machine: VertexMachine | None,
    topology: TpuTopology | None,
    check: Path | None,
    min_replicas: int,
    max_replicas: int | None,
    variables: tuple[str, ...],
    endpoint: str | None,
    model_name: str | None,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> int:
    """Print the gcloud commands that serve a version on Vertex AI.

    The commands upload the version, create an endpoint, deploy the model and send one request. With --tpu, the version
    must have been checked for the TPU, by `tpuserve export --tpu` or `tpuserve check --tpu`.
    """
    _check_options(project, region, topology, check, min_replicas, max_replicas)
    added = _parse_variables(variables)
    try:
        served = VertexVersion.read(version, _choose_machine(machine, topology), check)
        deployment = VertexDeployment(
            model=choose_name(model_name, served.base_name),
            version=served,
            artifact=artifact,
            image=image,
            project=project,
            region=region,
            min_replicas=min_replicas,
            max_replicas=max_replicas or min_replicas,
            endpoint=endpoint,
            variables=added,
        )
        script = deployment.script(_AUTHOR)
        written = [] if output is None else write_files(output.parent, {output.name: script}, replace=force)
    except Exception as error:  # the top of the process
        return report_error(error, as_json)
    if as_json:
        files = [str(path) for path in written]
        click.echo(json.dumps({"ok": True, "exit_code": 0, **deployment.to_json(), "files": files}, indent=2))
    elif output is None:
        click.echo(script, nl=False)
    else:
        click.echo("".join(f"! {note}.\n" for note in deployment.notes) + f"Wrote {output}")
    return 0


def _check_options(
    project: str,
    region: str,
    topology: TpuTopology | None,
    check: Path | None,
    min_replicas: int,
    max_replicas: int | None,
) -> None:
    for option, value, form in (("--project", project, _PROJECT), ("--region", region, _REGION)):
        if not form.fullmatch(value):
            example = "my-project" if option == "--project" else "us-central1"
            raise click.UsageError(f"{option} {value!r} has another form than {example}")
    if check is not None and topology is None:
        raise click.UsageError("--check has no effect without --tpu. Omit it")
    if max_replicas is not None and topology is not None and max_replicas != min_replicas:
        raise click.UsageError(
            "--max-replicas has no effect with --tpu, because Vertex AI does not scale machines with TPUs. Use "
            "--min-replicas alone"
        )
    if max_replicas is not None and max_replicas < min_replicas:
        raise click.UsageError(f"--max-replicas {max_replicas} is below --min-replicas {min_replicas}")


def _choose_machine(machine: VertexMachine | None, topology: TpuTopology | None) -> VertexMachine:
    """Return the machine that the options name. Raises OptionConflict if they name none, two, or an unknown one."""
    if machine is not None and topology is None:
        return machine
    if machine is None and topology is not None:
        return VertexMachine.of(topology)
    raise OptionConflict("set either --machine-type or --tpu")


def _parse_variables(texts: Iterable[str]) -> dict[str, str]:
    """Return the values of `NAME=V` by name. Raises usage errors."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not _VARIABLE.fullmatch(name):
            raise click.UsageError(f"--env {text!r} is not NAME=V")
        if _RESERVED.fullmatch(name):
            remedy = "Use --model-name" if name == "MODEL_NAME" else "Vertex AI sets it"
            raise click.UsageError(f"--env cannot set {name}. {remedy}")
        found[name] = value
    return found
