"""Output formats of the commands: tables on a terminal, plain lines elsewhere, JSON, .npz files."""

import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tpuserve_client.cli.ranking import RankedClass
from tpuserve_client.dtypes import STRING, Array, describe
from tpuserve_client.model import Prediction, VersionStatus
from tpuserve_client.plain import plain_values

# The best classes of each row, by output.
Ranking: TypeAlias = Mapping[str, Sequence[Sequence[RankedClass]]]

# Largest number of values that a table shows. Plain output shows all.
_SHOWN_VALUES = 100


def show_prediction(prediction: Prediction) -> None:
    """Print each output with its dtype, shape and values."""
    version = "" if prediction.version is None else f" version {prediction.version}"
    title = f"{prediction.model}{version}, {prediction.signature_name}"
    rows = [
        (name, f"{describe(array.dtype)}[{', '.join(map(str, array.shape))}]", _text(array))
        for name, array in prediction.items()
    ]
    show_rows(title, ("output", "type", "values"), rows)


def show_ranking(ranking: Ranking) -> None:
    """Print the best classes of each row of each output, or nothing if no output contains scores."""
    rows = [
        (
            name if len(found) == 1 else f"{name}[{number}]",
            str(place),
            one.label if one.label is not None else f"class {one.index}",
            f"{one.score:.4g}",
        )
        for name, found in ranking.items()
        for number, row in enumerate(found)
        for place, one in enumerate(row, start=1)
    ]
    if rows:
        show_rows("Best classes", ("output", "place", "class", "score"), rows)


def show_versions(model: str, versions: Iterable[VersionStatus]) -> None:
    """Print each version with its state, and its error or the reason why it waits."""
    rows = [(str(status.version), status.state.name, _reason(status)) for status in versions]
    show_rows(model, ("version", "state", "reason"), rows)


def show_rows(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table with a title on a terminal; elsewhere print only the rows, with tab-separated cells."""
    if not sys.stdout.isatty():
        for row in rows:
            click.echo("\t".join(row))
        return
    table = Table(*columns, title=Text(title), title_justify="left")
    for row in rows:
        table.add_row(*map(Text, row))  # Text, because a model's strings may look like rich's markup
    Console().print(table)


def prediction_document(prediction: Prediction, ranking: Ranking) -> dict[str, Any]:
    """Return a prediction as a JSON document.

    NaN and Infinity are bare tokens; bytes that are not UTF-8 are {"b64": …}. `top` contains the best classes of each
    row, by output.
    """
    return {
        "model": prediction.model,
        "version": prediction.version,
        "signature": prediction.signature_name,
        "outputs": {name: plain_values(array, "float") for name, array in prediction.items()},
        "top": {name: [[one.to_json() for one in row] for row in found] for name, found in ranking.items()},
    }


def versions_document(model: str, versions: Iterable[VersionStatus]) -> dict[str, Any]:
    """Return a model's versions as a JSON document."""
    items = [
        {"version": item.version, "state": item.state.name, "code": item.error_code.name, "error": item.error}
        for item in versions
    ]
    return {"model": model, "versions": items}


def save_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write an .npz file. bfloat16 and float8 become float32, and strings become fixed-width bytes.

    The .npz format has none of these types. numpy.savez would take an output named `file` for its own argument.
    """
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, _storable(array), allow_pickle=False)


def _storable(array: Array) -> Array:
    if array.dtype == STRING:
        return array.astype(bytes)
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def _text(array: Array) -> str:
    is_cut = array.size > _SHOWN_VALUES and sys.stdout.isatty()
    shown = _readable(array.reshape(-1)[:_SHOWN_VALUES] if is_cut else array)
    text = np.array2string(shown, separator=", ", threshold=sys.maxsize, max_line_width=sys.maxsize, floatmode="unique")
    text = " ".join(text.split())
    return f"{text[:-1]}, … {array.size - _SHOWN_VALUES} more]" if is_cut else text


def _readable(array: Array) -> Array:
    if array.dtype != STRING:
        return array
    return np.array([item.decode("utf-8", "backslashreplace") for item in array.reshape(-1)], object).reshape(
        array.shape
    )


def _reason(status: VersionStatus) -> str:
    code = f"{status.error_code.name}: " if status.error_code else ""
    return " ".join(f"{code}{status.error}".split())
