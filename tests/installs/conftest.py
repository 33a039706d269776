"""Environments that the tests of installations share."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.installs.environments import Environments


@pytest.fixture(scope="session")
def environments() -> Iterator[Environments]:
    """Return the maker of environments, and remove them at the end, because TensorFlow is large."""
    with tempfile.TemporaryDirectory(prefix="tpuserve-installs-") as folder:
        yield Environments(Path(folder))
