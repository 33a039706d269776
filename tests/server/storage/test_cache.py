import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from tpuserve_server.core.terms.errors import FailedPrecondition, ResourceExhausted, Unavailable
from tpuserve_server.storage.cache import Fill, VersionCache
from tpuserve_server.versions.manifest import sha256_of


def writing(content: bytes = b"12345678") -> Fill:
    def fill(target: Path) -> Mapping[str, str]:
        (target / "a").mkdir()
        (target / "a" / "b").write_bytes(content)
        return {"a/b": sha256_of(target / "a" / "b")}

    return fill


def refuse(target: Path) -> Mapping[str, str]:
    raise AssertionError(f"{target} should not have been filled")


def copies(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir() if path.is_dir()}


@pytest.fixture
def cache(tmp_path: Path) -> VersionCache:
    return VersionCache(tmp_path, 20)


def test_a_copy_is_made_once_under_its_own_name(cache: VersionCache, tmp_path: Path) -> None:
    first = cache.take("k", "7", 8, writing())
    assert first.name == "7"
    assert (first / "a" / "b").read_bytes() == b"12345678"
    assert cache.take("k", "7", 8, refuse) == first
    assert copies(tmp_path) == {"k"}
    assert cache.holds(first)
    cache.release(first)
    assert cache.holds(first)
    cache.release(first)
    assert not cache.holds(first)


def test_a_restart_finds_the_copy(cache: VersionCache, tmp_path: Path) -> None:
    path = cache.take("k", "7", 8, writing())
    cache.release(path)
    assert VersionCache(tmp_path, 20).take("k", "7", 8, refuse) == path


def test_a_damaged_copy_is_made_anew(cache: VersionCache) -> None:
    path = cache.take("k", "7", 8, writing())
    (path / "a" / "b").write_bytes(b"1234567x")
    with pytest.raises(Unavailable, match="damaged and in use"):
        cache.take("k", "7", 8, refuse)
    cache.release(path)
    assert (cache.take("k", "7", 8, writing()) / "a" / "b").read_bytes() == b"12345678"
    (path / "a" / "b").unlink()
    cache.release(path)
    assert (cache.take("k", "7", 8, writing()) / "a" / "b").read_bytes() == b"12345678"


def test_what_fails_halfway_leaves_nothing(cache: VersionCache, tmp_path: Path) -> None:
    def fail(target: Path) -> Mapping[str, str]:
        (target / "half").write_bytes(b"1")
        raise Unavailable("the store failed")

    with pytest.raises(Unavailable, match="the store failed"):
        cache.take("k", "7", 8, fail)
    assert copies(tmp_path) == set()
    cache.take("k", "7", 8, writing())


def test_the_least_recently_used_copy_that_is_not_in_use_makes_way(cache: VersionCache, tmp_path: Path) -> None:
    for key in ("first", "second"):
        cache.release(cache.take(key, "1", 8, writing()))
    os.utime(tmp_path / "second" / "entry.json", (1000, 1000))
    held = cache.take("first", "1", 8, refuse)
    cache.release(cache.take("third", "1", 8, writing()))
    assert copies(tmp_path) == {"first", "third"}
    third = cache.take("third", "1", 8, refuse)
    with pytest.raises(ResourceExhausted, match="16 of the storage cache's 20 are used by versions that are in use"):
        cache.take("fourth", "1", 8, refuse)
    assert copies(tmp_path) == {"first", "third"}
    cache.release(held)
    cache.take("fourth", "1", 8, writing())
    assert copies(tmp_path) == {"third", "fourth"}
    cache.release(third)


def test_a_version_larger_than_the_cache_is_refused_before_it_is_copied(cache: VersionCache) -> None:
    with pytest.raises(
        FailedPrecondition, match=r"21 bytes, more than the limit of the storage cache: 20 \(--storage_cac"
    ):
        cache.take("k", "7", 21, refuse)


def test_two_threads_that_want_one_copy_make_it_once(cache: VersionCache) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(target: Path) -> Mapping[str, str]:
        begun.set()
        assert go_on.wait(10)
        return writing()(target)

    taken: list[Path] = []

    def take(fill: Fill) -> None:
        taken.append(cache.take("k", "7", 8, fill))

    threads = [threading.Thread(target=take, args=(fill,)) for fill in (slow, refuse)]
    threads[0].start()
    assert begun.wait(10)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join()
    assert len(taken) == 2
    assert taken[0] == taken[1]


HOLDER = """
import sys
from pathlib import Path
from tpuserve_server.storage.cache import VersionCache
from tpuserve_server.versions.manifest import sha256_of

def fill(target):
    (target / "f").write_bytes(b"12345678")
    if sys.argv[2] == "dies":
        print("filling", flush=True)
        sys.stdin.read()
    return {"f": sha256_of(target / "f")}

VersionCache(Path(sys.argv[1]), 20).take("theirs", "1", 8, fill)
print("taken", flush=True)
sys.stdin.read()
"""


def another_server(tmp_path: Path, way: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path), way], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == ("filling" if way == "dies" else "taken")
    return process


def test_what_another_server_uses_is_not_evicted(cache: VersionCache, tmp_path: Path) -> None:
    with another_server(tmp_path, "lives") as other:
        with pytest.raises(ResourceExhausted, match="8 of the storage cache's 20"):
            cache.take("mine", "1", 16, refuse)
        path = cache.take("theirs", "1", 8, refuse)
        cache.release(path)
        other.communicate()
    cache.take("mine", "1", 16, writing())
    assert copies(tmp_path) == {"mine"}


def test_what_a_server_left_half_done_is_cleared_away(cache: VersionCache, tmp_path: Path) -> None:
    with another_server(tmp_path, "dies") as other:
        assert len(copies(tmp_path)) == 1
        with pytest.raises(ResourceExhausted):
            cache.take("mine", "1", 16, refuse)
        other.kill()
        other.communicate()
    cache.take("mine", "1", 16, writing())
    assert copies(tmp_path) == {"mine"}


def test_a_copy_that_another_server_has_made_meanwhile_is_no_hindrance(cache: VersionCache, tmp_path: Path) -> None:
    other = VersionCache(tmp_path, 30)

    def late(target: Path) -> Mapping[str, str]:
        other.take("k", "7", 8, writing())
        return writing()(target)

    path = cache.take("k", "7", 8, late)
    assert (path / "a" / "b").read_bytes() == b"12345678"
    # A released copy is deleted when the cache next needs space.
    cache.release(path)
    other.take("l", "7", 8, writing())
    assert not path.exists()
    assert copies(tmp_path) == {"k", "l"}


def test_a_folder_that_cannot_be_used_fails_without_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FailedPrecondition, match="storage cache cannot be used") as caught:
        VersionCache(tmp_path / "file" / "below", 20).take("k", "7", 8, refuse)
    assert str(tmp_path) not in caught.value.message


def test_entries_without_a_record_are_evicted_not_served(cache: VersionCache, tmp_path: Path) -> None:
    (tmp_path / "k" / "copy" / "7").mkdir(parents=True)
    (tmp_path / "k" / "entry.json").write_text("{}")
    assert (cache.take("k", "7", 20, writing()) / "a" / "b").exists()


def test_the_lock_of_the_cache_is_awaited(cache: VersionCache, tmp_path: Path) -> None:
    cache.release(cache.take("k", "7", 8, writing()))
    taken: list[Path] = []
    with (tmp_path / "lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: taken.append(cache.take("k", "7", 8, refuse)))
        thread.start()
        assert taken == []
    thread.join()
    assert len(taken) == 1
