"""The `tpuserve inspect PATH` command. It reads PATH and changes nothing."""

import json
import sys
from pathlib import Path
from typing import NoReturn

import click
from rich.console import Console

from tpuserve_exporter.command.running import report_failure, run_program
from tpuserve_exporter.errors import ExportError, SourceUnreadable
from tpuserve_exporter.inspection.look import inspect
from tpuserve_exporter.inspection.view import print_contents
from tpuserve_exporter.sources.checkpoint_path import unreadable

PROG_NAME = "tpuserve inspect"
_LOG_WIDTH = 120

_EPILOG = """\b
Examples:
  # the models, averages and optimizers of a training checkpoint, with every variable
  tpuserve inspect checkpoints/ --all
\b
  # a published version: signatures, metrics, origin of the weights, and whether its files are intact
  tpuserve inspect models/digits/3 --verify

\b
Exit codes:
  0  read, without damage as far as checked
  1  unexpected error
  2  wrong usage
  6  unreadable or damaged; the output lists missing and truncated files
  10  a framework's packages are not installed
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("path", type=click.Path(path_type=Path, readable=False))
@click.option("--all", "everything", is_flag=True, help="List every variable, operation and file.")
@click.option("--verify", is_flag=True, help="Read every file of a published version and compare its hash.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document to standard output, and nothing else.")
def command(path: Path, everything: bool, verify: bool, as_json: bool) -> int:
    """Show the contents of PATH: signatures, variables, sizes, operations, TPU and host operations, the manifest.

    PATH is a checkpoint of TensorFlow 2 or 1 (directory, prefix or .index file), a .meta graph, a .keras or .h5 file,
    an Orbax, Flax, T5X or .npz checkpoint, a .safetensors or .pt file, a directory of torch.distributed.checkpoint or
    save_pretrained, a SavedModel, or a version or base directory.
    The command runs no code from it.
    """
    console = Console(width=None if sys.stdout.isatty() else _LOG_WIDTH, highlight=False)
    try:
        contents = inspect(path, verify, _start)
    except ExportError as error:
        return report_failure(error, as_json)
    except OSError as error:
        return report_failure(unreadable(Path(error.filename or path), error), as_json)
    except Exception as error:  # the top of the process; damaged files may raise anything
        return report_failure(
            ExportError(f"cannot read the contents of {path.name}: {type(error).__name__}: {error}"), as_json
        )
    if as_json:
        click.echo(json.dumps(contents.to_json(), indent=2))
    else:
        print_contents(console, contents, everything)
    return SourceUnreadable.exit_code if contents.problems else 0


def _start() -> None:
    from tpuserve_exporter.models.frameworks import start_tensorflow

    start_tensorflow(in_command=True)


def main() -> NoReturn:
    """Run the `tpuserve-inspect` program, which users start as `tpuserve inspect`."""
    run_program(command, PROG_NAME)


if __name__ == "__main__":
    main()
