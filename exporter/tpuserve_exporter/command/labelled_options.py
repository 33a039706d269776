"""The options --labelled, --expect and the names in the file, which `export` and `check` share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from tpuserve_exporter.options.expectation import LabelledOptions

_Command = TypeVar("_Command", bound=Callable[..., Any])

_OPTIONS: Final = (
    click.option(
        "--labelled",
        metavar="FILE",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="Inputs with labels that training has not seen: .npz, TFRecord of tf.Example, or .csv. --expect evaluates "
        "the version on all rows.",
    ),
    click.option(
        "--expect",
        "expectations",
        metavar="METRIC[(OUTPUT[,LABELS])]>=BOUND",
        multiple=True,
        help="Bound that the version must meet on --labelled, with >=, <=, > or <: accuracy, top-K, auc, mae, rmse, "
        "perplexity, or pkg.module:function of (labels, output). Otherwise the exit code is 14. Repeatable.",
    ),
    click.option(
        "--label-key",
        metavar="KEY",
        help="Name of the labels in the file. [label, labels, y, or the only name that is no input]",
    ),
    click.option(
        "--input-key",
        "input_keys",
        metavar="INPUT=KEY",
        multiple=True,
        help="Name of an input in the file if it differs, e.g. image_bytes=image/encoded. Repeatable.",
    ),
    click.option(
        "--ignore-label",
        "ignored_label",
        type=int,
        help="Label of positions that metrics of classes do not count, such as padding. [-100]",
    ),
)


def read_labelled(arguments: dict[str, Any]) -> LabelledOptions | None:
    """Take the options out of the parameters that click parsed. Raises OptionConflict."""
    file, expectations, label_key, input_keys, ignored = (
        arguments.pop(name) for name in ("labelled", "expectations", "label_key", "input_keys", "ignored_label")
    )
    return LabelledOptions.read(file, expectations, label_key, input_keys, ignored)


def labelled_options(command: _Command) -> _Command:
    """Add the options to a command, in this order."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
