"""Tests for the number of listings that a source of many models asks of a store."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.counting_proxy import CountingProxy
from tests.support.object_stores import RunningStore
from tpuserve_server.core.models.local_storage import LocalStorage
from tpuserve_server.core.models.model_config import ModelConfig
from tpuserve_server.core.models.source import Source
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.storage.by_scheme import StorageByScheme
from tpuserve_server.storage.cache import VersionCache
from tpuserve_server.storage.remote import RemoteStorage
from tpuserve_server.versions.completeness import ModelFiles

FILES = ModelFiles(("saved_model.pb",))
MODELS = 40


@pytest.fixture
def proxy(store: RunningStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[CountingProxy]:
    """Return a proxy to which the variables of the store point."""
    with CountingProxy(store.port).running() as proxy:
        variable = "AWS_ENDPOINT_URL" if store.scheme == "s3" else "STORAGE_EMULATOR_HOST"
        monkeypatch.setenv(variable, f"http://127.0.0.1:{proxy.port}")
        yield proxy


class House:
    """A source of models in a store, polled by hand."""

    def __init__(self, folder: Path) -> None:
        self.reported: set[str] = set()
        remote = RemoteStorage(VersionCache(folder / "cache", 10**6), FILES, patience_s=100)
        storage = StorageByScheme(LocalStorage(lambda path: None), remote)
        self.source = Source(storage, self._report, poll_wait_s=3600, clock=SystemClock())

    def _report(self, name: str, aspired: Mapping[int, object]) -> None:
        if aspired:
            self.reported.add(name)


def test_each_base_path_is_listed_once_in_a_poll(store: RunningStore, proxy: CountingProxy, tmp_path: Path) -> None:
    names = [f"m{index}" for index in range(MODELS)]
    for name in names[:-1]:
        store.put(f"costs/{name}/1/saved_model.pb", b"x")
    house = House(tmp_path)
    house.source.watch([ModelConfig(name, store.uri(f"costs/{name}")) for name in names])
    # gcsfs writes through the proxy, too.
    proxy.delay_s, written = 0.05, proxy.others
    try:
        assert not house.source.poll()
        # The last base path is absent. gcsfs lists an empty prefix once more.
        absent = "costs/m39/"
        assert {prefix: count for prefix, count in proxy.listings.items() if prefix != absent} == {
            f"costs/{name}/": 1 for name in names[:-1]
        }
        assert proxy.listings[absent] == (1 if store.scheme == "s3" else 2)
        assert proxy.others == written
        assert 4 <= proxy.most_at_once <= 32
    finally:
        house.source.stop()
    assert house.reported == set()
