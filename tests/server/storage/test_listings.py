import threading
from collections.abc import Iterator
from typing import TypeAlias

import pytest

from tpuserve_server.storage.listings import Listings, StoreUnavailable
from tpuserve_server.storage.object_store import StoredObject

Objects: TypeAlias = tuple[StoredObject, ...]
FOUND = (StoredObject("1/a", "b/1/a", 1, "tag"),)


class SlowStore:
    """A store that returns scripted results when its gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.error: Exception | None = None
        self.looks = 0

    def look(self, base_path: str) -> Objects:
        self.looks += 1
        assert self.gate.wait(10)
        if self.error is not None:
            raise self.error
        return FOUND


@pytest.fixture
def store() -> Iterator[SlowStore]:
    store = SlowStore()
    yield store
    store.gate.set()


def get_patiently(listings: Listings[str, Objects], not_yet: str) -> Objects:
    """Poll until the result is not `not_yet`."""
    while True:
        try:
            return listings.get("s3://b")
        except StoreUnavailable as away:
            if not_yet not in str(away):
                raise


def test_a_store_that_hangs_is_waited_for_once_and_asked_once(store: SlowStore) -> None:
    listings = Listings(store.look, patience_s=0.01)
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="has not responded yet"):
            listings.get("s3://b")
    assert store.looks == 1
    store.gate.set()
    assert get_patiently(listings, "not responded") == FOUND
    assert store.looks == 1


def test_an_answer_in_time_is_returned_at_once_and_the_next_call_asks_anew(store: SlowStore) -> None:
    listings = Listings(store.look, patience_s=10)
    store.gate.set()
    assert listings.get("s3://b") == FOUND
    assert listings.get("s3://b") == FOUND
    assert store.looks == 2


def test_while_a_failed_store_hangs_its_last_reason_is_said_again(
    store: SlowStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tpuserve_server.storage")
    listings = Listings(store.look, patience_s=0.01)
    store.gate.set()
    store.error = ConnectionError("refused")
    with pytest.raises(StoreUnavailable, match="refused"):
        get_patiently(listings, "not responded")
    store.gate.clear()
    store.error = None
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="refused"):
            listings.get("s3://b")
    assert "responds again" not in caplog.text
    store.gate.set()
    assert get_patiently(listings, "refused") == FOUND
    assert caplog.text.count("responds again") == 1


def test_whatever_a_listing_raises_is_a_reason(store: SlowStore) -> None:
    store.gate.set()
    store.error = ValueError("strange")
    with pytest.raises(StoreUnavailable, match="strange"):
        Listings(store.look, patience_s=10).get("s3://b")
