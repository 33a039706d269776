"""Tests for the response cache: keys, the bound of bytes, the order of evictions, and copies."""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuserve_server.core.models.response_cache import EncodedResponse, ResponseCaches, VersionResponses, input_bytes
from tpuserve_server.core.terms.types import Array, ServableId, Tensors

ID = ServableId("m", 1)
X = np.arange(4, dtype=np.float32)
LARGE = 1 << 30


def opened(max_bytes: int = LARGE, servable_id: ServableId = ID) -> VersionResponses:
    return ResponseCaches().open(servable_id, max_bytes)


def key(responses: VersionResponses, inputs: Tensors, signature: str = "s", filtered: tuple[str, ...] = ()) -> bytes:
    found = responses.key(signature, filtered, inputs)
    assert found is not None
    return found


def strings(*values: bytes) -> Array:
    return np.array(values, object)


def entry_bytes(values: Array) -> int:
    """Return the size that the cache counts for one entry with one output."""
    responses = opened()
    responses.store(b"", {"y": values})
    return responses.counts().size_bytes


def test_what_was_stored_is_found_bit_by_bit() -> None:
    responses = opened()
    special = np.array([np.nan, -0.0, np.inf, 1e-45], np.float32)
    texts = np.array([[b"", b"\xff\x00"], [b"a", b"a" * 100]], object)
    half = np.array([[1.5]], ml_dtypes.bfloat16)
    # TensorFlow returns numpy's scalars for outputs of rank 0.
    scalar: Any = np.float32(3)
    outputs: Tensors = {"f": special, "t": texts, "h": half, "empty": np.empty((0, 3), np.int64), "scalar": scalar}
    found_key = key(responses, {"x": X})
    assert responses.find(found_key) is None
    responses.store(found_key, outputs)
    found = responses.find(found_key)
    assert found is not None
    assert list(found) == list(outputs)
    for name, array in found.items():
        assert (array.dtype, array.shape) == (outputs[name].dtype, outputs[name].shape)
        assert array.tobytes() == outputs[name].tobytes() or array.tolist() == outputs[name].tolist()
    assert found["f"].tobytes() == special.tobytes()
    assert found["scalar"] is scalar
    assert responses.counts()[:3] == (1, 1, 0)


def test_kept_arrays_are_read_only_copies_without_the_batch() -> None:
    responses = opened()
    batch = np.zeros((1000, 4), np.float32)
    view = batch[3:4]
    found_key = key(responses, {"x": X})
    responses.store(found_key, {"y": view})
    batch[:] = 7
    found = responses.find(found_key)
    assert found is not None
    assert found["y"].base is None
    assert not found["y"].any()
    with pytest.raises(ValueError, match="read-only"):
        found["y"][0] = 1
    assert responses.counts().size_bytes < batch.nbytes


@pytest.mark.parametrize(
    ("inputs", "signature", "filtered"),
    [
        ({"x": X + 1}, "s", ()),
        ({"x": X.reshape(2, 2)}, "s", ()),
        ({"x": X.view(np.int32)}, "s", ()),
        ({"x": X.astype(">f4")}, "s", ()),
        ({"z": X}, "s", ()),
        ({"x": X, "z": X[:0]}, "s", ()),
        ({"x": np.array([-0.0, 1, 2, 3], np.float32)}, "s", ()),
        ({"x": X}, "s2", ()),
        ({"x": X}, "s", ("y",)),
        ({}, "s", ()),
    ],
)
def test_keys_differ_in_everything_that_a_run_depends_on(
    inputs: Tensors, signature: str, filtered: tuple[str, ...]
) -> None:
    responses = opened()
    plain = key(responses, {"x": X})
    assert key(responses, inputs, signature, filtered) != plain
    assert key(responses, {"x": X.copy()}) == plain


def test_dtypes_of_one_size_without_a_buffer_have_different_keys() -> None:
    responses = opened()
    raw = np.zeros(3, np.uint8)
    dtypes = (np.uint8, np.int8, np.bool_, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
    assert len({key(responses, {"x": raw.view(dtype)}) for dtype in dtypes}) == len(dtypes)
    large = np.zeros(5000, np.uint16)
    assert key(responses, {"x": large.view(ml_dtypes.bfloat16)}) != key(responses, {"x": large.view(np.float16)})


def test_equal_inputs_have_one_key_whatever_their_order_and_layout() -> None:
    responses = opened()
    table = np.arange(6, dtype=np.float32).reshape(2, 3)
    one = key(responses, {"a": X, "b": table})
    assert key(responses, {"b": np.asfortranarray(table), "a": X}) == one
    large = np.arange(6000, dtype=np.float32).reshape(2, 3000)
    assert key(responses, {"x": large.T}) == key(responses, {"x": np.ascontiguousarray(large.T)})


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_strings_share_a_key_only_if_they_are_equal(one: list[bytes], other: list[bytes]) -> None:
    responses = opened()
    keys = [key(responses, {"x": strings(*values)}) for values in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)


def test_objects_that_are_no_bytes_have_no_key() -> None:
    assert opened().key("s", (), {"x": np.array(["text", 3], object)}) is None
    assert opened().key("s", (), {"x": np.array(["text"], object)}) is None


def test_the_least_recently_used_entries_leave_when_the_bound_is_reached() -> None:
    size = entry_bytes(X)
    responses = opened(3 * size)
    for index in range(3):
        responses.store(b"%d" % index, {"y": X})
    assert responses.find(b"0") is not None
    responses.store(b"3", {"y": X})
    assert [responses.find(b"%d" % index) is not None for index in range(4)] == [True, False, True, True]
    assert responses.counts().evictions == 1
    assert responses.counts().size_bytes == 3 * size


def test_a_response_larger_than_the_bound_is_not_kept_and_evicts_nothing() -> None:
    responses = opened(entry_bytes(X))
    responses.store(b"small", {"y": X})
    responses.store(b"large", {"y": np.zeros(1000, np.float32)})
    assert responses.find(b"large") is None
    assert responses.find(b"small") is not None


def test_the_first_of_two_equal_requests_in_flight_stays() -> None:
    responses = opened()
    responses.store(b"k", {"y": X})
    first = responses.find(b"k")
    responses.store(b"k", {"y": X + 1})
    assert responses.find(b"k") is first
    assert responses.counts().size_bytes == entry_bytes(X)


def test_versions_of_a_model_share_the_bound_and_no_entry() -> None:
    caches = ResponseCaches()
    size = entry_bytes(X)
    old, new, other = (
        caches.open(ID, 2 * size),
        caches.open(ServableId("m", 2), 2 * size),
        caches.open(ServableId("other", 1), 2 * size),
    )
    inputs = {"x": X}
    assert len({key(each, inputs) for each in (old, new, other)}) == 3
    for each in (old, new, other):
        each.store(key(each, inputs), {"y": X})
    new.store(b"more", {"y": X})
    assert [each.counts()[2:4] for each in (old, new, other)] == [(1, 0), (0, 2 * size), (0, size)]


def test_a_version_that_ends_frees_its_entries_and_no_others() -> None:
    caches = ResponseCaches()
    old, new = caches.open(ID, LARGE), caches.open(ServableId("m", 2), LARGE)
    old.store(b"old", {"y": X})
    new.store(b"new", {"y": X})
    old.close()
    old.close()
    assert old.counts().size_bytes == 0
    assert old.find(b"old") is None
    old.store(b"late", {"y": X})
    assert old.find(b"late") is None
    assert new.find(b"new") is not None


def test_a_version_that_is_loaded_again_starts_without_entries() -> None:
    caches = ResponseCaches()
    before = caches.open(ID, LARGE)
    before.store(key(before, {"x": X}), {"y": X})
    after = caches.open(ID, LARGE)
    assert after.find(key(after, {"x": X})) is None


def test_the_bound_of_the_version_that_was_loaded_last_holds_at_once() -> None:
    caches = ResponseCaches()
    size = entry_bytes(X)
    old = caches.open(ID, 10 * size)
    for index in range(10):
        old.store(b"%d" % index, {"y": X})
    caches.open(ServableId("m", 2), 3 * size)
    assert old.counts()[2:4] == (7, 3 * size)


@pytest.mark.parametrize("values", [X, strings(*(b"x" * size for size in range(60))), np.zeros((30, 30))])
def test_counted_bytes_are_at_least_those_in_memory(values: Array) -> None:
    responses = opened()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for index in range(500):
            # New strings each time, as a model makes them.
            fresh = strings(*(bytes(bytearray(text)) for text in values)) if values.dtype == object else values
            responses.store(key(responses, {"x": np.array([index])}), {"y": fresh})
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used <= responses.counts().size_bytes
    # The constants are upper bounds, but not waste.
    assert responses.counts().size_bytes <= 3 * used


def test_encoded_responses_are_found_by_the_bytes_of_the_request() -> None:
    responses = opened()
    request = responses.body_key("rest", b"{}")
    assert responses.find_encoded(request) is None
    response = EncodedResponse("s", b"answer")
    responses.store_encoded(request, response)
    assert responses.find_encoded(request) == response
    # The look-up of the inputs that follows a miss counts it.
    assert responses.counts()[:3] == (1, 0, 0)
    others = [responses.body_key(kind, body) for kind, body in (("grpc", b"{}"), ("rest", b"{ }"), ("rest{", b"}"))]
    assert len({request, *others}) == 4
    responses.close()
    assert responses.find_encoded(request) is None


def test_encoded_responses_count_towards_the_bound() -> None:
    size = entry_bytes(X)
    responses = opened(size + 200)
    responses.store_encoded(b"large", EncodedResponse("s", bytes(10 * size)))
    assert responses.find_encoded(b"large") is None
    responses.store(b"k", {"y": X})
    responses.store_encoded(b"r", EncodedResponse("s", bytes(100)))
    assert responses.counts().evictions == 1
    assert 100 < responses.counts().size_bytes <= size + 200


def test_threads_may_share_it() -> None:
    size = entry_bytes(X)
    responses = opened(8 * size)

    def work(seed: int) -> None:
        for index in range(300):
            found_key = key(responses, {"x": np.array([(seed * index) % 12])})
            found = responses.find(found_key)
            assert found is None or found["y"][0] == (seed * index) % 12
            responses.store(found_key, {"y": np.full(4, (seed * index) % 12, np.float32)})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, (1, 5, 7, 11)))
    counts = responses.counts()
    assert counts.hits + counts.misses == 1200
    assert counts.size_bytes <= 8 * size


def test_input_bytes_counts_strings() -> None:
    assert input_bytes({"x": X, "s": strings(b"abc", b"")}) == X.nbytes + 3
