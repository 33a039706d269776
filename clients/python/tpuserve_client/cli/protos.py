"""`tpuserve protos`: write the `.proto` files for clients in other languages."""

import shutil
from importlib.resources import as_file, files
from pathlib import Path

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def protos(directory: Path) -> None:
    """Write the .proto files of the server's gRPC services into DIRECTORY.

    `grpc_predict_v2.proto` is the Open Inference Protocol in one file. `tensorflow_serving` has the services of
    TensorFlow Serving, and `tensorflow` and `xla` the files that they import.
    """
    try:
        with as_file(files("tpuserve_formats").joinpath("protos")) as source:
            shutil.copytree(source, directory, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        raise click.ClickException(f"Cannot write the files to {directory}: {error}") from None
    click.echo(f"Wrote {directory}/grpc_predict_v2.proto and {directory}/tensorflow_serving")
