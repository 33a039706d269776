"""Branch coverage of child processes, for the few tests whose subject lives in one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from coverage import Coverage

ROOT = Path(__file__).parents[2]


@contextmanager
def measuring_children() -> Iterator[None]:
    """Measure the processes that start meanwhile, where this one is measured.

    Tracing costs a child process half as much again. The floor of `hosts` needs it, and that of no other layer.
    """
    measuring = Coverage.current()
    if measuring is None:
        yield
        return
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("COVERAGE_PROCESS_START", str(ROOT / "pyproject.toml"))
        environment.setenv("COVERAGE_FILE", os.path.abspath(str(measuring.get_option("run:data_file"))))
        yield
