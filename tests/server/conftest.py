"""Fixtures of the tests of the server."""

from collections.abc import Iterator

import pytest

from tpuserve_server.access.caller import set_caller


@pytest.fixture(autouse=True)
def no_caller() -> Iterator[None]:
    """Remove the caller after each test: asynchronous tests share one context."""
    yield
    set_caller(None)
