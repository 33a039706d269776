"""One store of each kind for all tests. Each test uses a separate base path."""

from collections.abc import Iterator

import pytest

from tests.support.object_stores import RunningStore, running_store


@pytest.fixture(scope="session", params=["s3", "gs"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStore]:
    with running_store(request.param, tmp_path_factory.mktemp("store")) as store:
        yield store
