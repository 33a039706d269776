"""`tpuserve predict`: one prediction from a file or a text."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, get_args

import click

from tpuserve_client.cli.connection import Connection, connection_options, countdown
from tpuserve_client.cli.image import SCALES, image_input, only_input, string_input
from tpuserve_client.cli.input_file import FileInputs, ImageFile, Text, read_input
from tpuserve_client.cli.ranking import could_be_ranked, rank
from tpuserve_client.cli.render import prediction_document, save_arrays, show_prediction, show_ranking
from tpuserve_client.dtypes import STRING
from tpuserve_client.errors import InvalidArgument, TpuserveError
from tpuserve_client.exchange import Priority
from tpuserve_formats.counted import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuserve_client.client import Client, Inputs
    from tpuserve_client.model import Prediction, Signature

_EPILOG = """\b
Examples:
  # a photo, for a model exported with --signature serving_default=image_bytes
  tpuserve predict cats -i photo.jpg
\b
  # a photo, for a model that takes pixel values from 0 to 1
  tpuserve predict cats -i photo.jpg --scale 0..1 --labels labels.txt
\b
  # a text; rows from a file; rows from a pipe
  tpuserve predict films --text 'a good film'
  tpuserve predict iris -i rows.npy
  echo '{"instances": [[5.1, 3.5, 1.4, 0.2]]}' | tpuserve predict iris -i - --json
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model")
@click.option(
    "-i",
    "--input",
    "file",
    type=click.File("rb"),
    metavar="FILE|-",
    help="Input file: JSON, .npy, .npz, .txt or an image. - reads standard input.",
)
@click.option("--text", help="Text to send instead of a file.")
@connection_options
@click.option("--version", type=click.IntRange(min=0), help="Version to run. Default: the latest.")
@click.option("--label", help="Label of the version to run.")
@click.option("--signature", "signature_name", help="Signature to run. Default: serving_default.")
@click.option("--output", "outputs", multiple=True, metavar="NAME", help="Output to return. Repeatable. Default: all.")
@click.option("--priority", type=click.Choice(get_args(Priority)), help="Priority in the server's queue.")
@click.option(
    "--scale",
    type=click.Choice(list(SCALES)),
    help="Range of pixel values of a floating-point input: none (0..255), 0..1 or -1..1.",
)
@click.option("--no-scale", is_flag=True, help="The same as --scale none.")
@click.option(
    "--labels",
    "labels_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File with class names, one per line. Default: the server's labels.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--save", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.npz", help="File for the outputs."
)
def predict(
    model: str,
    file: BinaryIO | None,
    text: str | None,
    connection: Connection,
    version: int | None,
    label: str | None,
    signature_name: str | None,
    outputs: tuple[str, ...],
    priority: Priority | None,
    scale: str | None,
    no_scale: bool,
    labels_file: Path | None,
    as_json: bool,
    save: Path | None,
) -> None:
    """Send one input to MODEL and print the outputs.

    The five best classes follow outputs with scores.

    JSON is a TensorFlow Serving body ({"instances": …} or {"inputs": …}), {"input name": array, …}, or a plain array
    for a model with one input. An .npz file names its inputs. An image or a text goes to the model's only input. A
    string input gets it unchanged. A numeric input gets an image in the input's size, channels and dtype. The command
    describes the conversion on standard error.
    """
    if version is not None and label is not None:
        raise click.UsageError("--version and --label are mutually exclusive.")
    if (file is None) == (text is None):
        raise click.UsageError("Use either --input FILE or --text TEXT.")
    if no_scale and scale not in (None, "none"):
        raise click.UsageError("--scale and --no-scale are mutually exclusive.")
    with connection.one_line_errors(), connection.client() as client:
        labels = None if labels_file is None else _read_labels(labels_file)
        source = Text(text) if text is not None else read_input(_present(file))
        # Start the timeout after reading the file, because a slow pipe must not count against the server.
        remaining_s = countdown(connection.timeout_s)
        name = signature_name or (source.signature_name if isinstance(source, FileInputs) else None)

        def find_signature() -> "Signature":
            metadata = client.metadata(model, version=version, label=label, timeout_s=remaining_s())
            return metadata.signature(name)

        prediction = client.predict(
            model,
            _inputs(source, find_signature, "none" if no_scale else scale),
            version=version,
            label=label,
            signature_name=name,
            output_filter=outputs,
            priority=priority,
            timeout_s=remaining_s(),
        )
        if labels is None and could_be_ranked(prediction):
            labels = _reported_labels(client, prediction, model, remaining_s())
        if save is not None:
            save_arrays(save, prediction)
    ranking = rank(prediction, labels or ())
    if labels_file is not None and not any(one.label for found in ranking.values() for row in found for one in row):
        click.echo(
            f"labels: {labels_file.name} has {counted(len(labels or ()), 'line')}, but no output has scores for that "
            "many classes",
            err=True,
        )
    if as_json:
        click.echo(json.dumps(prediction_document(prediction, ranking)))
    else:
        show_prediction(prediction)
        show_ranking(ranking)


def _present(file: BinaryIO | None) -> BinaryIO:
    assert file is not None, "the command checks that there is a file or a text"
    return file


def _inputs(
    source: FileInputs | ImageFile | Text, find_signature: "Callable[[], Signature]", scale: str | None
) -> "Inputs":
    """Return inputs that fit the signature. Reports the conversion of an image on standard error."""
    if isinstance(source, FileInputs):
        return source.inputs
    if isinstance(source, ImageFile):
        image = image_input(source.content, find_signature(), scale)
        click.echo(f"image: {image.description}", err=True)
        return image.inputs
    name, spec = only_input(find_signature(), "A text")
    if spec.dtype != STRING:
        raise InvalidArgument(f"Input {spec} does not accept text. Send an array (.npy, .npz or JSON).")
    return {name: string_input(source.content.encode(), spec)}


def _read_labels(path: Path) -> tuple[str, ...]:
    try:
        return tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"Cannot read --labels {path.name} as text: {error}") from None


def _reported_labels(
    client: "Client", prediction: "Prediction", model: str, timeout_s: float | None
) -> tuple[str, ...]:
    """Return the labels of the version that answered, or () if the server refuses, as TensorFlow Serving does."""
    try:
        return client.metadata(model, version=prediction.version, with_labels=True, timeout_s=timeout_s).labels
    except TpuserveError:
        return ()
