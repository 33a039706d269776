"""A library of all pages, whose environments have the built wheels."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.docs.commands.library import Library, read_pages
from tests.installs.environments import Environments


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """Return a library below an empty directory. Pages with the same installations share an environment."""
    folder = tmp_path_factory.mktemp("commands")
    environments = Environments(folder / "environments")
    made: dict[tuple[str, ...], Path] = {}

    def install(commands: Sequence[str]) -> Path:
        key = tuple(sorted(commands))
        if key not in made:
            made[key] = environments.make_with_pip(f"pages-{len(made)}", key).folder
        return made[key]

    return Library(folder / "pages", read_pages(), install)
