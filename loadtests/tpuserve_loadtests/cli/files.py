"""Files that a report is written to beside the terminal: `--html`, `--csv`, `--hdr`, `--junit`."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from tpuserve_loadtests.cli.command import option
from tpuserve_loadtests.exit_codes import EXIT_FAILED

# What the plotter at HdrHistogram's site takes: one distribution, where a log has many.
DISTRIBUTION: Final = ".hgrm"

Content = Callable[[], str]


_PATH: Final = click.Path(path_type=Path)


@dataclass(frozen=True, slots=True)
class PageOptions:
    """Files that every report can be written to; None for those that were not asked for."""

    junit: Path | None = option(
        "--junit", type=_PATH, metavar="FILE", help="Write JUnit XML, too, which CI systems show."
    )
    html: Path | None = option(
        "--html", type=_PATH, metavar="FILE", help="Write a page with charts, too: one file, no network."
    )

    def check(self) -> None:
        """Raise a usage error where nothing can be written."""
        _check_writable(self.html, "--html")
        _check_writable(self.junit, "--junit")


@dataclass(frozen=True, slots=True)
class FileOptions(PageOptions):
    """And those of commands that measure loads alone."""

    csv: Path | None = option(
        "--csv", type=_PATH, metavar="FILE", help="Write a table, too: by time, or a row for each run."
    )
    hdr: Path | None = option(
        "--hdr", type=_PATH, metavar="FILE", help="Write HdrHistogram's log, too; a name in .hgrm: its percentiles."
    )

    def check(self) -> None:
        """As PageOptions'."""
        _check_writable(self.html, "--html")
        _check_writable(self.csv, "--csv")
        _check_writable(self.hdr, "--hdr")
        _check_writable(self.junit, "--junit")

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


def _check_writable(path: Path | None, option: str) -> None:
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
