"""The pages with commands, and their runs. A page that continues another begins with its files."""

import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.commands.page import Page, read_page
from tests.docs.commands.runner import ROOT
from tests.support import loopback_only
from tests.support.optional import needs, skip_unless

FIRST_PAGE = "README.md"
_OBSTACLE = loopback_only.obstacle()
# Marks of tests that run pages.
MARKS = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),  # the first page of a chain also runs those before it
    pytest.mark.xdist_group("commands"),
    needs("curl"),
    skip_unless(not _OBSTACLE, f"needs network namespaces: {_OBSTACLE}"),
]

_FOLDERS = ("docs/tutorials", "docs/how-to")
# Python's web server prints its address at once only without a buffer.
_VARIABLES = {"LANG": "C.UTF-8", "TERM": "dumb", "PYTHONUNBUFFERED": "1"}
_TUTORIAL = "docs/tutorials/keras.md"


def read_pages() -> dict[str, Page]:
    """Return the README, the front page, the tutorials and the how-tos, by name."""
    folders = (sorted((ROOT / folder).rglob("*.md")) for folder in _FOLDERS)
    paths = [ROOT / FIRST_PAGE, ROOT / "docs/index.md", *itertools.chain.from_iterable(folders)]
    pages = (read_page(path, ROOT) for path in paths)
    return {page.name: page for page in pages}


@dataclass(frozen=True, slots=True)
class Ran:
    """The run of a page: its output, whether all commands succeeded, and the directory where it ended."""

    printed: str
    succeeded: bool
    directory: Path


class Library:
    """Runs pages below a directory, each once."""

    def __init__(self, folder: Path, pages: dict[str, Page], install: Callable[[Sequence[str]], Path]) -> None:
        """Take an empty directory and a function.

        The function gets the installations of a page, and returns the directory of an environment that has them.
        """
        self._folder = folder
        self._pages = pages
        self._install = install
        self._ran: dict[str, Ran] = {}

    def run(self, name: str) -> Ran:
        """Run a page, after the pages that it continues. Blocks for minutes."""
        if name not in self._ran:
            self._ran[name] = self._run(self._pages[name])
        return self._ran[name]

    def _earlier(self, page: Page) -> Iterable[str]:
        """Return the pages whose files a page begins with. Without another word, how-tos continue the tutorial."""
        return page.after or ([_TUTORIAL] if page.name.startswith("docs/how-to/") else [])

    def _run(self, page: Page) -> Ran:
        home = self._folder / page.name.replace("/", "-").removesuffix(".md")
        directory = home / "work"
        directory.mkdir(parents=True)
        for earlier in map(self.run, self._earlier(page)):
            if not earlier.succeeded:
                return Ran(earlier.printed, False, directory)
            shutil.copytree(earlier.directory, directory, symlinks=True, dirs_exist_ok=True)
        environment = self._install(page.installs)
        # The place of `make install`, so that the pages' `activate` finds it.
        (home / "tpuserve").symlink_to(environment)
        done = subprocess.run(
            [*loopback_only.COMMAND, sys.executable, "-m", "tests.docs.commands.runner", page.name, directory],
            cwd=ROOT,
            env={"PATH": f"{environment / 'bin'}:/usr/local/bin:/usr/bin:/bin", "HOME": str(home), **_VARIABLES},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        printed = done.stdout + done.stderr
        succeeded = done.returncode == 0
        ended = directory.with_name("work.code") / "directory"
        return Ran(printed, succeeded, Path(ended.read_text(encoding="utf-8")) if succeeded else directory)
