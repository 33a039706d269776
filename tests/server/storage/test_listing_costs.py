"""Tests for the number of listings that a source of many models asks of a store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.counting_proxy import CountingProxy
from tests.support.fake_device import FakeClock
from tests.support.object_stores import RunningStore
from tpuserve_server.core.models.local_storage import LocalStorage
from tpuserve_server.core.models.model_config import ModelConfig
from tpuserve_server.core.models.source import Source
from tpuserve_server.core.models.watched_model import STILL_S
from tpuserve_server.core.terms.types import Pending
from tpuserve_server.storage import directory_listings
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
    """A source of models in a store, polled by hand. Between polls no time passes, so that no version is complete."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.found: dict[str, set[int]] = {}
        remote = RemoteStorage(VersionCache(folder / "cache", 10**6), FILES, patience_s=100)
        storage = StorageByScheme(LocalStorage(lambda path: None), remote)
        self.source = Source(
            storage,
            lambda name, aspired: None,
            poll_wait_s=3600,
            clock=self.clock,
            on_pending=self._note,
            prepare=remote.prepare,
        )

    def _note(self, name: str, pending: Pending) -> None:
        """Note the versions that the source has found. All of them are new, so they are not complete yet."""
        self.found[name] = set(pending.versions)


@pytest.fixture
def house(store: RunningStore, proxy: CountingProxy, tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.source.stop()


def test_base_paths_in_one_directory_are_listed_together(
    store: RunningStore, proxy: CountingProxy, house: House
) -> None:
    names = [f"m{index}" for index in range(MODELS)]
    for name in names[:-1]:
        store.put(f"together/{name}/1/saved_model.pb", b"x")
    house.source.watch([ModelConfig(name, store.uri(f"together/{name}")) for name in names])
    # gcsfs writes through the proxy, too.
    written = proxy.others
    for polls in (1, 2):
        assert not house.source.poll()
        assert proxy.listings == {"together/": polls}
    assert proxy.others == written
    assert house.found == {name: {1} if name in names[:-1] else set() for name in names}


def test_each_base_path_is_listed_once_in_a_poll(store: RunningStore, proxy: CountingProxy, house: House) -> None:
    paths = [f"apart/{index}/m" for index in range(MODELS)]
    for path in paths[:-1]:
        store.put(f"{path}/1/saved_model.pb", b"x")
    house.source.watch([ModelConfig(f"m{index}", store.uri(path)) for index, path in enumerate(paths)])
    proxy.delay_s, written = 0.05, proxy.others
    assert not house.source.poll()
    assert proxy.listings == {f"{path}/": 1 for path in paths}
    assert proxy.others == written
    assert 4 <= proxy.most_at_once <= 32


def test_a_directory_with_many_other_objects_is_listed_in_vain_once(
    store: RunningStore, proxy: CountingProxy, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_listings, "_PAGE", 5)
    names = [f"m{index}" for index in range(6)]
    for name in names:
        store.put(f"crowded/{name}/1/saved_model.pb", b"x")
    house.source.watch([ModelConfig(name, store.uri(f"crowded/{name}")) for name in names])
    for polls in (1, 2):
        assert not house.source.poll()
        assert proxy.listings == {
            **{f"crowded/{name}/": polls for name in names},
            "crowded/": proxy.listings["crowded/"],
        }
        assert proxy.listings["crowded/"] <= 2
    assert house.found == {name: {1} for name in names}


# gcsfs repeats a refused request for half a minute.
@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_a_store_that_throttles_has_no_effect_on_the_versions(
    store: RunningStore, proxy: CountingProxy, house: House, caplog: pytest.LogCaptureFixture
) -> None:
    store.put("throttled/m/1/saved_model.pb", b"x")
    house.source.watch([ModelConfig("m", store.uri("throttled/m"))])
    assert not house.source.poll()
    proxy.refuses = True
    assert not house.source.poll()
    assert "Model m cannot be polled: " in caplog.text
    assert house.found == {"m": set()}
    proxy.refuses = False
    assert not house.source.poll()
    assert house.found == {"m": {1}}
    house.clock.advance(STILL_S)
    assert house.source.poll()
