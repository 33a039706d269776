"""A version that serves, for the tests of the console."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.console_house import ConsoleHouse


@pytest.fixture
def house(tmp_path: Path) -> Iterator[ConsoleHouse]:
    made = ConsoleHouse(tmp_path / "m" / "3")
    yield made.bring_up()
    made.stop()
