"""Branch coverage of child processes, for the few tests whose subject runs in one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from coverage import Coverage

ROOT = Path(__file__).parents[2]


@contextmanager
def measuring_children() -> Iterator[None]:
    """Measure the child processes that start in the block, if this process is measured.

    Tracing makes a child process 1.5 times as slow. Only the floor of `hosts` needs it.
    """
    measuring = Coverage.current()
    if measuring is None:
        yield
        return
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("COVERAGE_PROCESS_START", str(ROOT / "pyproject.toml"))
        environment.setenv("COVERAGE_FILE", os.path.abspath(str(measuring.get_option("run:data_file"))))
        yield
