"""The page of `--attach-to`: a file in a version directory, which the server of the version lists in its console."""

import os
from datetime import datetime
from pathlib import Path
from typing import Final

import click

from tpuserve_formats.manifest import MANIFEST_FILE
from tpuserve_formats.version_reports import MOST_REPORT_BYTES, REPORTS_FOLDER

# A version has at least one of these files.
_MODEL_FILES: Final = ("saved_model.pb", "saved_model.pbtxt", "model.tflite", MANIFEST_FILE.as_posix())


def check_version(version: Path | None, option: str) -> None:
    """Raise a usage error if `version` is not a version directory, or pages cannot be written to it."""
    if version is None:
        return
    if not any((version / name).is_file() for name in _MODEL_FILES):
        problem = "contains no model" if version.is_dir() else "is no directory of this machine"
        raise click.BadParameter(
            f"{version} {problem}. Set a version directory, such as /models/digits/8.", param_hint=option
        )
    folder = version / REPORTS_FOLDER
    existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise click.BadParameter(f"Cannot write to {existing}.", param_hint=option)


def attached_page(version: Path, kind: str, now: datetime) -> Path:
    """Return the file for the page of a report of this kind. Names of one kind sort by time."""
    return version / REPORTS_FOLDER / f"{kind.replace(' ', '-')}-{now:%Y%m%d-%H%M%S}.html"


def checked_page(page: str) -> str:
    """Return the page. Warn on standard error if it is too large for a console."""
    size_bytes = len(page.encode())
    if size_bytes > MOST_REPORT_BYTES:
        click.echo(
            f"Warning: The attached page has {size_bytes:,} bytes. The console lists only pages of at most "
            f"{MOST_REPORT_BYTES:,}.",
            err=True,
        )
    return page
