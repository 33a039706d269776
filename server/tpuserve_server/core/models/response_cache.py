"""Response caches: successful outputs by version, signature, requested outputs and inputs, within a bound of bytes.

A key is a SHA-256 over all of these, with every length before its content. The cache compares only digests. Two
requests with one digest would get one answer, but no client can construct them: a collision takes about 2^128 digests
(FIPS 180-4).

A second entry for a request holds the encoded response by the bytes of the request. It saves decoding and encoding,
which take most of the time of a small request from the cache.
"""

import hashlib
import itertools
import sys
import threading
from collections import OrderedDict
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from tpuserve_server.core.terms.types import Array, Body, CacheOutcome, ServableId, Tensors

# Inputs from this size on are hashed on a worker thread: about 1 ms of work, which releases the interpreter's lock.
LARGE_INPUT_BYTES = 1 << 20
# Upper bounds of the memory of an entry without outputs, and of an array without data, in CPython 3.11 to 3.14: the
# key, the entry, its dictionary and its place in the order; the array's object, shape and strides.
_ENTRY_BYTES = 768
_ARRAY_BYTES = 256
# A copy of larger arrays would cost more than a view.
_SMALL_ARRAY_BYTES = 1 << 12


class CacheCounts(NamedTuple):
    """Counts of a version's cache since its load, and the bytes that its entries take now.

    `hit_s` and `miss_s` are the total seconds of look-ups. `miss_s` includes storing the outputs, but not the run.
    """

    hits: int
    misses: int
    evictions: int
    size_bytes: int
    hit_s: float = 0.0
    miss_s: float = 0.0


class EncodedResponse(NamedTuple):
    """A response in the form of one protocol, and the signature that produced it.

    `json_bytes` is the length of the JSON before binary data in a REST response, or None without binary data.
    """

    signature_name: str
    body: bytes
    json_bytes: int | None = None


class Answered(Protocol):
    """The result of a request, in the form of any protocol."""

    @property
    def servable(self) -> ServableId:
        """The version that ran the request."""
        ...

    @property
    def signature_name(self) -> str:
        """The signature that produced the outputs."""
        ...

    @property
    def cache(self) -> CacheOutcome:
        """Whether the outputs came from the cache. Empty if they cannot be kept."""
        ...


class _Entry(NamedTuple):
    """Kept outputs or one kept response. No array shares memory with a batch or a request, and none is writable."""

    owner: "VersionResponses"
    kept: Tensors | EncodedResponse
    size_bytes: int


class _ModelCache:
    """The entries of all versions of a model, least recently used first. `lock` guards every field."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.max_bytes = 0
        self.size_bytes = 0
        self.entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self.versions = 0

    def evict(self) -> None:
        """Remove the least recently used entries, until the others fit."""
        while self.size_bytes > self.max_bytes:
            _, entry = self.entries.popitem(last=False)
            self.size_bytes -= entry.size_bytes
            entry.owner.evicted(entry.size_bytes)


class VersionResponses:
    """One version's part of its model's cache. Thread-safe.

    The server does not join identical requests that are in flight together: each runs, and the first response stays.
    """

    __slots__ = (
        "_evictions", "_hit_s", "_hits", "_is_open", "_miss_s", "_misses", "_model", "_prefix", "_size_bytes",
    )  # fmt: skip

    def __init__(self, model: _ModelCache, prefix: bytes) -> None:
        """Create the part without entries. `prefix` distinguishes its keys from those of all other versions."""
        self._model = model
        self._prefix = hashlib.sha256(prefix)
        self._hits = self._misses = self._evictions = self._size_bytes = 0
        self._hit_s = self._miss_s = 0.0
        self._is_open = True

    def key(self, signature_name: str, output_filter: tuple[str, ...], inputs: Tensors) -> bytes | None:
        """Return the key of a request, or None for strings that are not bytes. Takes about 1 ms for 1 MB of inputs."""
        names = sorted(inputs)
        # A dtype's number is unique in a process, for the dtypes of ml_dtypes too.
        described = [(name, (one := inputs[name]).dtype.num, one.dtype.byteorder, one.shape) for name in names]
        head = repr((signature_name, output_filter, described)).encode()
        digest = self._prefix.copy()
        digest.update(b"tensors %d:" % len(head) + head)
        try:
            for name in names:
                _update(digest, inputs[name])
        except TypeError:
            return None
        return digest.digest()

    def body_key(self, kind: str, body: Body) -> bytes:
        """Return the key of a request by its bytes. `kind` states what the bytes are, and the form of the response."""
        digest = self._prefix.copy()
        digest.update(b"body %d:%b" % (len(kind), kind.encode()))
        digest.update(body)
        return digest.digest()

    def find(self, key: bytes) -> Tensors | None:
        """Return the outputs that were stored under `key`, or None. No caller may write to them."""
        # The digest states the type of the entry.
        return cast("Tensors | None", self._find(key, misses=1))

    def find_encoded(self, key: bytes) -> EncodedResponse | None:
        """Return the response that was stored under `key` of `body_key`, or None, which does not count as a miss."""
        return cast("EncodedResponse | None", self._find(key, misses=0))

    def store(self, key: bytes, outputs: Tensors) -> None:
        """Keep a copy of the outputs of a successful request, unless they are larger than the bound of the model."""
        size_bytes = _ENTRY_BYTES + sum(map(_size_bytes, outputs.values()))
        # Another version's load may change the bound at any time: this check only saves the copy.
        if size_bytes <= self._model.max_bytes:
            self._store(_Entry(self, {name: _kept(value) for name, value in outputs.items()}, size_bytes), key)

    def store_encoded(self, key: bytes, response: EncodedResponse) -> None:
        """Keep a successful response under `key` of `body_key`."""
        self._store(_Entry(self, response, _ENTRY_BYTES + sys.getsizeof(response.body)), key)

    def _find(self, key: bytes, misses: int) -> Tensors | EncodedResponse | None:
        model = self._model
        with model.lock:
            entry = model.entries.get(key)
            if entry is None:
                self._misses += misses
                return None
            self._hits += 1
            model.entries.move_to_end(key)
            return entry.kept

    def _store(self, entry: _Entry, key: bytes) -> None:
        model = self._model
        with model.lock:
            if not self._is_open or key in model.entries or entry.size_bytes > model.max_bytes:
                return
            model.entries[key] = entry
            model.size_bytes += entry.size_bytes
            self._size_bytes += entry.size_bytes
            model.evict()

    def counts(self) -> CacheCounts:
        """Return the current counts."""
        with self._model.lock:
            return CacheCounts(self._hits, self._misses, self._evictions, self._size_bytes, self._hit_s, self._miss_s)

    def add_hit_s(self, duration_s: float) -> None:
        """Add the time of a look-up that found a response."""
        with self._model.lock:
            self._hit_s += duration_s

    def add_miss_s(self, duration_s: float) -> None:
        """Add the time of a look-up that found none, and of storing the outputs of the run."""
        with self._model.lock:
            self._miss_s += duration_s

    def close(self) -> None:
        """Free this version's entries, and store none from now on. May be called again."""
        model = self._model
        with model.lock:
            if not self._is_open:
                return
            self._is_open = False
            model.versions -= 1
            model.size_bytes -= self._size_bytes
            self._size_bytes = 0
            for key in [key for key, entry in model.entries.items() if entry.owner is self]:
                del model.entries[key]

    def evicted(self, size_bytes: int) -> None:
        """Count an entry that the model's cache has removed. Called with the model's lock held."""
        self._evictions += 1
        self._size_bytes -= size_bytes


class ResponseCaches:
    """The caches of all models. Thread-safe: `_lock` guards the models and their numbers of open versions."""

    def __init__(self) -> None:
        """Start without caches."""
        self._lock = threading.Lock()
        self._models: dict[str, _ModelCache] = {}
        self._numbers = itertools.count()

    def open(self, servable_id: ServableId, max_bytes: int) -> VersionResponses:
        """Create a version's part. `max_bytes` bounds all versions of its model together from now on."""
        with self._lock:
            self._models = {name: model for name, model in self._models.items() if model.versions}
            model = self._models.setdefault(servable_id.name, _ModelCache())
            with model.lock:
                model.versions += 1
                model.max_bytes = max_bytes
                model.evict()
            # A version that is loaded again may have other contents, so its number is not enough.
            return VersionResponses(model, b"%d:" % next(self._numbers))


class Recall:
    """The look-up of a request by its bytes. `found` is None if the version must run it."""

    __slots__ = ("_key", "_responses", "found", "servable_id")

    def __init__(self, servable_id: ServableId, responses: VersionResponses, key: bytes) -> None:
        """Look up `key` in the cache of the version."""
        self.servable_id = servable_id
        self._responses = responses
        self._key = key
        self.found = responses.find_encoded(key)

    def keep(self, result: Answered, body: bytes, json_bytes: int | None = None) -> None:
        """Keep `body`, the encoded `result` of this request, unless another version has run it.

        See EncodedResponse for `json_bytes`.
        """
        if result.cache and result.servable == self.servable_id:
            self._responses.store_encoded(self._key, EncodedResponse(result.signature_name, body, json_bytes))


def input_bytes(inputs: Tensors) -> int:
    """Return the size of the inputs' data, in bytes."""
    return sum(sum(map(len, array.flat)) if array.dtype.hasobject else array.nbytes for array in inputs.values())


def _update(digest: "hashlib._Hash", array: Array) -> None:
    """Add the data of an array whose dtype and shape are already in the digest. Raises TypeError for other objects."""
    if array.dtype.hasobject:
        strings = array.ravel().tolist()
        digest.update(np.fromiter(map(len, strings), np.int64, len(strings)).tobytes())
        digest.update(b"".join(strings))
    elif array.nbytes <= _SMALL_ARRAY_BYTES:
        digest.update(array.tobytes())
    else:
        # hashlib does not know the dtypes of ml_dtypes. A view copies nothing.
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _size_bytes(array: Array) -> int:
    if array.dtype.hasobject:
        return _ARRAY_BYTES + array.nbytes + sum(map(sys.getsizeof, array.flat))
    return _ARRAY_BYTES + int(array.nbytes)


def _kept(output: Any) -> Array:  # noqa: ANN401 (TensorFlow returns numpy's scalars for outputs of rank 0)
    """Copy an output, which may be a view of the whole batch or of the request. numpy's scalars never change."""
    if isinstance(output, np.generic):
        return cast("Array", output)
    copy: Array = np.array(output, order="C")
    copy.flags.writeable = False
    return copy
