"""`tpuserve predict`: one prediction from a file."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, get_args

import click

from tpuserve_client.cli.connection import Connection, connection_options, countdown, one_line_errors
from tpuserve_client.cli.image import image_input
from tpuserve_client.cli.input_file import FileInputs, ImageFile, read_input
from tpuserve_client.cli.render import prediction_document, save_arrays, show_prediction
from tpuserve_client.exchange import Priority

if TYPE_CHECKING:
    from tpuserve_client.client import Inputs


@click.command()
@click.argument("model")
@click.option(
    "-i",
    "--input",
    "file",
    type=click.File("rb"),
    required=True,
    metavar="FILE|-",
    help="JSON, .npy, .npz or an image; - reads standard input.",
)
@connection_options
@click.option("--version", type=click.IntRange(min=0), help="Version to ask; the latest without it.")
@click.option("--label", help="Label of the version to ask.")
@click.option("--signature", "signature_name", help="Signature to run; serving_default without it.")
@click.option("--output", "outputs", multiple=True, metavar="NAME", help="Only this output; can be repeated.")
@click.option("--priority", type=click.Choice(get_args(Priority)), help="low: where other requests leave room.")
@click.option("--no-scale", is_flag=True, help="Leave an image's values at 0 to 255 for a floating-point input.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.npz", help="Write the outputs.")
def predict(
    model: str,
    file: BinaryIO,
    connection: Connection,
    version: int | None,
    label: str | None,
    signature_name: str | None,
    outputs: tuple[str, ...],
    priority: Priority | None,
    no_scale: bool,
    as_json: bool,
    save: Path | None,
) -> None:
    """Send one input file to MODEL and print what comes back.

    JSON is a TensorFlow Serving body ({"instances": …} or {"inputs": …}), {"input name": array, …}, or a plain array
    for a model with one input. An .npz file names its inputs. An image is brought to the size, channels and dtype of
    the model's only input; values are scaled to 0..1 for floating point.
    """
    if version is not None and label is not None:
        raise click.UsageError("--version and --label exclude each other.")
    with one_line_errors(), connection.client() as client:
        given = read_input(file)
        # From here on: a file that comes slowly through a pipe is not the server's fault.
        remaining_s = countdown(connection.timeout_s)
        name = signature_name or (given.signature_name if isinstance(given, FileInputs) else None)
        inputs: Inputs
        if isinstance(given, ImageFile):
            metadata = client.metadata(model, version=version, label=label, timeout_s=remaining_s())
            signature = metadata.signature(name)
            inputs = image_input(given.content, signature, scale=not no_scale)
        else:
            inputs = given.inputs
        prediction = client.predict(
            model,
            inputs,
            version=version,
            label=label,
            signature_name=name,
            output_filter=outputs,
            priority=priority,
            timeout_s=remaining_s(),
        )
        if save is not None:
            save_arrays(save, prediction)
    if as_json:
        click.echo(json.dumps(prediction_document(prediction)))
    else:
        show_prediction(prediction)
