"""Hosts serve in child processes, which branch coverage must measure too."""

from collections.abc import Iterator

import pytest

from tests.support.measured_children import measuring_children


@pytest.fixture(scope="module", autouse=True)
def _measure_child_processes() -> Iterator[None]:
    with measuring_children():
        yield
