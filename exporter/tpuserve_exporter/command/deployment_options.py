"""Options that the subcommands of `tpuserve deploy` share."""

from pathlib import Path

import click

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
