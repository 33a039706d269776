"""Files that a report is written to beside the terminal: `--html`, `--csv`, `--hdr`, `--junit`."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import click

from tpuserve_loadtests.exit_codes import EXIT_FAILED

# What the plotter at HdrHistogram's site takes: one distribution, where a log has many.
DISTRIBUTION: Final = ".hgrm"

Content = Callable[[], str]


@dataclass(frozen=True, slots=True)
class Files:
    """Where to write which form of the report; None for those that were not asked for."""

    html: Path | None
    csv: Path | None
    hdr: Path | None
    junit: Path | None

    @classmethod
    def given(cls, values: Mapping[str, Any]) -> Self:
        """From the values of options.file_options. A usage error where nothing can be written."""
        files = cls(values["html"], values["csv"], values["hdr"], values["junit"])
        for name in ("html", "csv", "hdr", "junit"):
            check_writable(values[name], f"--{name}")
        return files

    @property
    def wants_distribution(self) -> bool:
        """Whether `--hdr` names a file of one run's percentiles instead of a log."""
        return self.hdr is not None and self.hdr.suffix == DISTRIBUTION

    def refuse_distribution(self) -> None:
        """For what makes several runs: a usage error for `--hdr FILE.hgrm`, which holds one."""
        if self.hdr is not None and self.wants_distribution:
            raise click.BadParameter(
                f"{self.hdr.name} would hold one run's percentiles and here are several: write --hdr FILE.hdr, a log",
                param_hint="--hdr",
            )

    def write(self, *, html: Content, csv: Content, hdr: Content, junit: Content) -> None:
        """Write those that were asked for and say so. Ends the program with a message where that fails."""
        for path, content in ((self.junit, junit), (self.html, html), (self.csv, csv), (self.hdr, hdr)):
            if path is not None:
                write(path, content())


def check_writable(path: Path | None, option: str) -> None:
    """A usage error, before any load, for a file that could not be written after it."""
    if path is None:
        return
    if not path.parent.is_dir():
        raise click.BadParameter(f"there is no folder {path.parent}", param_hint=option)
    if path.is_dir():
        raise click.BadParameter(f"{path} is a folder; give a file's name", param_hint=option)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise click.BadParameter(f"{path} cannot be written: permission denied", param_hint=option)


def write(path: Path, content: str) -> None:
    """Write a report's file. Ends the program with a message where that fails: the table was printed already."""
    if not try_to_write(path, content):
        sys.exit(EXIT_FAILED)


def try_to_write(path: Path, content: str) -> bool:
    """Write it and say so, or say why not."""
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        click.echo(f"Error: {path} could not be written: {error.strerror}", err=True)
        return False
    click.echo(f"Wrote {path}", err=True)
    return True
