"""Tests for regions of POSIX shared memory: the rules of their registration, and tensors in them."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.shared_memory import PREFIX, SharedObject
from tpuserve_server.core.terms.errors import (
    AlreadyExists,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    ServingError,
    Unimplemented,
)
from tpuserve_server.protocols.oip.shared_memory import SharedMemoryRegions
from tpuserve_server.protocols.options import SharedMemoryOptions
from tpuserve_server.wire.oip.inference import InferenceRequest, InputTensor, RegionWindow, RequestedOutput


@pytest.fixture
def regions() -> SharedMemoryRegions:
    return SharedMemoryRegions(SharedMemoryOptions((PREFIX,)), 1 << 16)


@pytest.fixture
def shared() -> Iterator[SharedObject]:
    with SharedObject("object", 128) as shared:
        yield shared


def register(regions: SharedMemoryRegions, shared: SharedObject, offset: int = 0, byte_size: int = 128) -> None:
    regions.register("r", shared.key, offset, byte_size)


def test_a_region_is_a_window_of_an_object(regions: SharedMemoryRegions, shared: SharedObject) -> None:
    register(regions, shared, offset=10, byte_size=20)
    shared.write(b"data", offset=13)
    assert bytes(regions.read(RegionWindow("r", 4, 3))) == b"data"
    regions.write(RegionWindow("r", 5, 3), "y", b"reply")
    assert shared.read()[13:18] == b"reply"
    assert [status._asdict() for status in regions.status()] == [
        {"name": "r", "key": shared.key, "offset": 10, "byte_size": 20}
    ]
    regions.unregister("r")
    assert regions.status() == []


def test_what_was_read_keeps_its_bytes_when_the_client_changes_or_unregisters_the_region(
    regions: SharedMemoryRegions, shared: SharedObject
) -> None:
    register(regions, shared)
    shared.write(b"before")
    contents = regions.read(RegionWindow("r", 6))
    shared.write(b"after!")
    regions.unregister()
    assert bytes(contents) == b"before"
    with pytest.raises(TypeError):
        contents[0] = 0


def test_an_object_that_the_client_shortens_is_refused(regions: SharedMemoryRegions, shared: SharedObject) -> None:
    register(regions, shared)
    os.truncate(shared.path, 10)
    with pytest.raises(InvalidArgument, match="region 'r' is shorter than when it was registered"):
        regions.read(RegionWindow("r", 20))
    with pytest.raises(InvalidArgument, match="is shorter than when it was registered"):
        regions.write(RegionWindow("r", 20), "y", bytes(20))
    assert len(shared.read()) == 10


def test_the_server_closes_objects_that_no_region_uses(regions: SharedMemoryRegions, shared: SharedObject) -> None:
    def is_open() -> bool:
        return any(
            os.path.realpath(f"/proc/self/fd/{number}") == str(shared.path) for number in os.listdir("/proc/self/fd")
        )

    register(regions, shared)
    assert is_open()
    with pytest.raises(AlreadyExists, match="shared memory region 'r' already in manager"):
        register(regions, shared)
    regions.unregister("r")
    assert not is_open()
    with pytest.raises(InvalidArgument):
        register(regions, shared, byte_size=129)
    assert not is_open()
    assert shared.path.exists()


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("", "cannot register shared memory region 'r' - invalid shm key ''"),
        ("///", "cannot register shared memory region 'r' - invalid shm key '///'"),
        ("/..", "invalid shm key"),
        ("/{prefix}/../object", "invalid shm key"),
        ("../shm/{prefix}object", "invalid shm key"),
        ("/{prefix}\0", "invalid shm key"),
        ("/{prefix}" + "x" * 300, "invalid shm key"),
        ("/other", "allows only keys that begin with '/{prefix}', got '/other'"),
    ],
)
def test_a_key_that_is_a_path_or_lacks_the_prefix_is_refused(
    regions: SharedMemoryRegions, key: str, message: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        regions.register("r", key.format(prefix=PREFIX), 0, 1)
    assert message.format(prefix=PREFIX) in caught.value.message


def test_a_missing_object_a_link_and_a_directory_are_refused(regions: SharedMemoryRegions, tmp_path: Path) -> None:
    link, directory = (Path("/dev/shm") / f"{PREFIX}{name}" for name in ("link", "directory"))
    target = tmp_path / "secret"
    target.write_bytes(bytes(64))
    link.symlink_to(target)
    directory.mkdir()
    try:
        for name in ("absent", "link", "directory"):
            with pytest.raises(Internal) as caught:
                regions.register("r", f"/{PREFIX}{name}", 0, 1)
            assert caught.value.message == f"Unable to open shared memory region: '/{PREFIX}{name}'"
    finally:
        link.unlink()
        directory.rmdir()


def test_a_pipe_is_refused_at_once(regions: SharedMemoryRegions) -> None:
    pipe = Path("/dev/shm") / f"{PREFIX}pipe"
    os.mkfifo(pipe)
    with contextlib.ExitStack() as stack:
        stack.callback(pipe.unlink)
        with pytest.raises(InvalidArgument, match="is not a shared memory object"):
            regions.register("r", f"/{PREFIX}pipe", 0, 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_an_object_of_another_user_is_refused(regions: SharedMemoryRegions, shared: SharedObject) -> None:
    os.chown(shared.path, 12345, -1)
    with pytest.raises(InvalidArgument, match="belongs to another user"):
        register(regions, shared)


@pytest.mark.parametrize(
    ("offset", "byte_size"), [(0, 129), (1, 128), (128, 1), (129, 0), (0, 0), (2**64 - 1, 2), (0, 2**64 - 1)]
)
def test_a_region_outside_its_object_is_refused(
    regions: SharedMemoryRegions, shared: SharedObject, offset: int, byte_size: int
) -> None:
    with pytest.raises(InvalidArgument, match="failed to register shared memory region 'r': invalid args"):
        register(regions, shared, offset, byte_size)
    assert regions.status() == []


@pytest.mark.parametrize(
    ("window", "error", "message"),
    [
        (RegionWindow("s", 1), NotFound, "Unable to find shared memory region: 's'"),
        (RegionWindow("r", 1, 128), InvalidArgument, "Invalid offset for shared memory region: 'r'"),
        (RegionWindow("r", 1, -1), InvalidArgument, "Invalid offset for shared memory region: 'r'"),
        (RegionWindow("r", 128, 1), InvalidArgument, "Invalid offset + byte size for shared memory region: 'r'"),
        (RegionWindow("r", 2**64 - 32, 32), InvalidArgument, "Integer overflow detected: byte_size ("),
    ],
)
def test_a_window_outside_the_region_is_refused(
    regions: SharedMemoryRegions, shared: SharedObject, window: RegionWindow, error: type[ServingError], message: str
) -> None:
    register(regions, shared)
    with pytest.raises(error) as reading:
        regions.read(window)
    assert reading.value.message.startswith(message)
    with pytest.raises(error):
        regions.write(window, "y", b"1")


def test_an_output_larger_than_its_window_is_refused(regions: SharedMemoryRegions, shared: SharedObject) -> None:
    register(regions, shared)
    with pytest.raises(InvalidArgument) as caught:
        regions.write(RegionWindow("r", 4), "y", b"12345")
    assert caught.value.message == (
        "shared memory size specified with the request for output 'y' (4 bytes) should be at least 5 bytes to hold the "
        "results"
    )
    assert shared.read() == bytes(128)


def test_inputs_larger_than_a_request_may_be_are_refused_before_they_are_copied(
    regions: SharedMemoryRegions, shared: SharedObject
) -> None:
    # A sparse object needs no memory.
    os.truncate(shared.path, 1 << 40)
    register(regions, shared, byte_size=1 << 40)
    request = InferenceRequest(
        inputs=[InputTensor("x", "FP32", [1 << 38], b"")], windows={0: RegionWindow("r", 1 << 40)}
    )
    with pytest.raises(ResourceExhausted, match="over the limit of 65536 bytes of --max_request_bytes"):
        regions.with_inputs(request)


def test_a_request_with_an_unknown_output_region_is_refused_before_it_runs(regions: SharedMemoryRegions) -> None:
    request = InferenceRequest(outputs=[RequestedOutput("y", region=RegionWindow("r", 4))], windows={})
    with pytest.raises(NotFound):
        regions.with_inputs(request)


def test_without_a_prefix_clients_can_only_read_the_empty_status() -> None:
    regions = SharedMemoryRegions(SharedMemoryOptions(), 1)
    assert regions.status() == []
    disabled = r"Client shared memory is disabled\. Start the server with '--shared_memory_prefix=PREFIX'"
    with pytest.raises(Unimplemented, match=disabled):
        regions.register("r", "/k", 0, 1)
    with pytest.raises(Unimplemented, match=disabled):
        regions.unregister()


def test_the_prefix_may_begin_with_a_slash_like_a_key(shared: SharedObject) -> None:
    for prefix in (f"/{PREFIX}", "/"):
        regions = SharedMemoryRegions(SharedMemoryOptions((prefix,)), 1)
        register(regions, shared)
        assert regions.are_enabled


def test_the_number_of_regions_is_limited(
    regions: SharedMemoryRegions, shared: SharedObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpuserve_server.protocols.oip.shared_memory._MAX_REGIONS", 1)
    register(regions, shared)
    with pytest.raises(InvalidArgument, match="1 regions are registered, which is the limit"):
        regions.register("s", shared.key, 0, 1)
