"""Tests that any value of a caller leads to a result or to a TpuserveError, through both clients and both protocols."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.clients.clients_under_test import make_client
from tests.clients.model_server import FLOAT, STRING, UINT8, ModelServer
from tpuserve_client import Client, InvalidArgument, TpuserveError
from tpuserve_client.exchange import PredictCall, Wire
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec
from tpuserve_client.rest_wire import RestWire

X = np.ones((2, 4), np.float32)
SURROGATE = "a\ud800"


class Hostile:
    """An object whose methods all fail, each with an error of another kind."""

    def __array__(self, dtype: object = None, copy: object = None) -> None:
        raise RuntimeError("no array")

    def __index__(self) -> int:
        raise KeyError("no index")

    def __repr__(self) -> str:
        raise ZeroDivisionError


class Endless(Sequence[Any]):
    """A sequence whose elements are all itself."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401  as the base class
        return self


class HostileMapping(Mapping[str, Any]):
    """A mapping without readable values."""

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401  as the base class
        raise OSError("the file is gone")

    def __iter__(self) -> Iterator[str]:
        return iter("x")

    def __len__(self) -> int:
        return 1


class WithoutItems(list[Any]):
    """A list that cannot be read."""

    def __len__(self) -> int:
        raise AttributeError("no length")

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401  as the base class
        raise AttributeError("no item")

    def __iter__(self) -> Iterator[Any]:
        raise AttributeError("no items")


def endless_list() -> list[Any]:
    endless: list[Any] = []
    endless += [endless, endless]
    return endless


def deep_list() -> list[Any]:
    deep: list[Any] = [0]
    for _ in range(5000):
        deep = [deep]
    return deep


def doubled_list() -> list[Any]:
    """Return a list of 2**61 numbers that takes little memory."""
    doubled: list[Any] = [0, 0]
    for _ in range(60):
        doubled = [doubled, doubled]
    return doubled


# Values that no tensor can hold.
REFUSED: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "object": object,
    "hostile": Hostile,
    "list of hostile": lambda: [Hostile()],
    "endless": Endless,
    "endless list": endless_list,
    "endless list in second place": lambda: [0, endless_list()],
    "deep list": deep_list,
    "doubled list": doubled_list,
    "long range": lambda: range(10**12),
    "list without items": lambda: WithoutItems([1]),
    "generator": lambda: (number for number in [1]),
    "set": lambda: {1, 2},
    "mapping": lambda: {"a": 1},
    "list of mappings": lambda: [{"a": 1}],
    "ragged": lambda: [[1], [1, 2]],
    "mixed": lambda: [1, "a", None],
    "text and bytes, ragged": lambda: [["a", b"\xff"], ["b"]],
    "surrogate": lambda: SURROGATE,
    "list of surrogate": lambda: ["b", SURROGATE],
    "array of surrogate": lambda: np.array([SURROGATE]),
    "object array of surrogate": lambda: np.array([SURROGATE], object),
    "scalar object array": lambda: np.array({1}, object),
    "object array": lambda: np.array([1, "a"], object),
    "array of arrays": lambda: np.array([X, None], object),
    "masked": lambda: np.ma.masked,
    "masked array": lambda: np.ma.array(X, mask=X > 0),
    "list of masked arrays": lambda: [np.ma.array([1.0, 2.0], mask=[True, False])],
    "list with masked": lambda: [[1.0, np.ma.masked]],
    "datetime": lambda: np.array(["2026-01-01"], "M8[D]"),
    "time difference": lambda: np.array([1], "m8[s]"),
    "structured": lambda: np.zeros(2, [("a", "f4"), ("b", "i4")]),
    "bytes of no type": lambda: np.zeros(2, "V4"),
    "long double": lambda: np.ones(2, np.longdouble),
    "big integer": lambda: [2**70],
    "huge integer": lambda: 10**5000,
    "float16 of another kind": lambda: np.ones(2, ml_dtypes.float8_e8m0fnu),
    "array of 8 EiB": lambda: np.broadcast_to(np.float32(0), (2**61 - 1,)),
}
# Values with one meaning on both wires. They are sent to an input of the dtype in ACCEPTED_TYPES.
ACCEPTED: dict[str, tuple[int, Callable[[], Any], object]] = {
    "nothing masked": (FLOAT, lambda: np.ma.array([1.0, 2.0], np.float32, mask=[False, False]), [1.0, 2.0]),
    "list of masked arrays": (FLOAT, lambda: [np.ma.array([1.0]), np.ma.array([2.0])], [[1.0], [2.0]]),
    "big-endian": (FLOAT, lambda: np.array([1, 2], ">f4"), [1.0, 2.0]),
    "negative stride": (FLOAT, lambda: np.array([1, 2], np.float32)[::-1], [2.0, 1.0]),
    "columns": (FLOAT, lambda: np.array([[1, 2], [3, 4]], np.float32).T, [[1.0, 3.0], [2.0, 4.0]]),
    "broadcast": (FLOAT, lambda: np.broadcast_to(np.float32(1), (2,)), [1.0, 1.0]),
    "read-only": (FLOAT, lambda: np.frombuffer(b"\0\0\x80\x3f", "<f4"), [1.0]),
    "deque": (FLOAT, lambda: deque([1, 2]), [1.0, 2.0]),
    "range": (FLOAT, lambda: range(2), [0.0, 1.0]),
    "tuple": (FLOAT, lambda: (1, 2.5), [1.0, 2.5]),
    "out of range": (FLOAT, lambda: [1e300, -1e300], [np.inf, -np.inf]),
    "memoryview": (UINT8, lambda: memoryview(b"ab"), [97, 98]),
    "bytearray": (STRING, lambda: bytearray(b"a\xff\0"), b"a\xff\0"),
    "bytearrays": (STRING, lambda: [bytearray(b"ab"), bytearray(b"cd")], [b"ab", b"cd"]),
    "bytearrays of two lengths": (STRING, lambda: [[bytearray(b"a"), "bc"]], [[b"a", b"bc"]]),
    "bytearray in an object array": (STRING, lambda: np.array([bytearray(b"a"), None], object)[:1], [b"a"]),
    "scalar object array": (STRING, lambda: np.array("a", object), b"a"),
    "text and bytes": (STRING, lambda: ["größe", b"\xff"], ["größe".encode(), b"\xff"]),
    "trailing NUL": (STRING, lambda: ["a\0", b"\0"], [b"a\0", b"\0"]),
    "numpy text": (STRING, lambda: np.str_("a"), b"a"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_value_that_no_tensor_holds_is_refused(client: Client, server: ModelServer, name: str) -> None:
    with pytest.raises(InvalidArgument):
        client.predict("affine", {"x": REFUSED[name]()})
    if not isinstance(bare := REFUSED[name](), Mapping):  # a mapping has the inputs by name
        with pytest.raises(InvalidArgument):
            client.predict("affine", bare)
    assert "Predict" not in server.methods()


@pytest.mark.parametrize("name", ACCEPTED)
def test_value_of_any_layout_reaches_the_model(client: Client, server: ModelServer, name: str) -> None:
    dtype, make, expected = ACCEPTED[name]
    spec = {"x": (dtype, [-1] * np.ndim(np.array(expected, object)))}
    server.signatures["mirror"] = (spec, spec)
    assert client.predict("mirror", {"x": make()})["x"].tolist() == expected


@pytest.mark.parametrize(
    "arguments",
    [
        {"model": None},
        {"model": SURROGATE},
        {"model": 5},
        {"label": SURROGATE},
        {"label": b"stable"},
        {"version": True},
        {"version": 10**5000},
        {"version": 1.0},
        {"version": "1"},
        {"version": Hostile()},
        {"version": np.array([1, 2])},
        {"signature_name": SURROGATE},
        {"signature_name": 5},
        {"signature_name": ["serving_default"]},
        {"output_filter": None},
        {"output_filter": 5},
        {"output_filter": b"y"},
        {"output_filter": [b"y"]},
        {"output_filter": [SURROGATE]},
        {"output_filter": [None]},
        {"output_filter": SURROGATE},
        {"output_filter": WithoutItems()},
        {"priority": np.array(["high", "low"])},
        {"priority": [SURROGATE]},
        {"inputs": {SURROGATE: X}},
        {"inputs": {None: X}},
        {"inputs": {Hostile(): X}},
        {"inputs": HostileMapping()},
    ],
    ids=lambda arguments: "-".join(map(str, arguments)),
)
def test_argument_of_a_wrong_type_is_refused(client: Client, server: ModelServer, arguments: dict[str, Any]) -> None:
    for inputs in ({"x": X}, [[1, 2, 3, 4]]):  # the second needs the metadata
        with pytest.raises(InvalidArgument):
            client.predict(**{"model": "affine", "inputs": inputs, **arguments})
    assert "Predict" not in server.methods()


@pytest.mark.parametrize("version", [np.int64(3), np.uint8(3), np.array(3)])
def test_version_of_any_integer_type_reaches_the_server(client: Client, server: ModelServer, version: Any) -> None:  # noqa: ANN401 - several types
    client.predict("affine", [[1, 2, 3, 4]], version=version)
    assert [served.version for served in server.served if served.method == "Predict"] == [3]


@pytest.mark.parametrize("method", ["status", "metadata", "is_ready"])
@pytest.mark.parametrize("model", [SURROGATE, 5, b"m"])
def test_model_name_of_any_type_is_refused(client: Client, method: str, model: object) -> None:
    with pytest.raises(InvalidArgument, match="The name of the model"):
        getattr(client, method)(model)


@pytest.mark.parametrize("protocol", ["rest"], indirect=True)
@pytest.mark.parametrize("model", ["", ".", ".."])
def test_model_name_that_changes_the_path_is_refused_for_rest(client: Client, server: ModelServer, model: str) -> None:
    for call in (client.status, client.metadata):
        with pytest.raises(InvalidArgument, match="A REST path cannot name the model"):
            call(model)
    with pytest.raises(InvalidArgument, match="A REST path cannot name the model"):
        client.metadata("affine", label="..")
    assert server.served == []


@pytest.mark.parametrize("wire", [GrpcWire(), RestWire()], ids=["grpc", "rest"])
def test_request_of_more_than_2_gib_is_refused_before_it_takes_memory(wire: Wire) -> None:
    large = np.broadcast_to(np.float32(0), (2**29, 1))
    with pytest.raises(InvalidArgument, match="max_batch_size"):
        wire.predict(PredictCall(ModelSpec("m"), {"x": large}))


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=4)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.binary(max_size=4),
    st.binary(max_size=4).map(bytearray),
    st.binary(max_size=4).map(lambda content: memoryview(content)),
    ANY_TEXT,
    st.decimals(),
    st.fractions(),
    st.dates(),
    st.builds(Hostile),
    st.sampled_from([object(), ..., np.ma.masked, np.nan, np.float16(1), np.datetime64("NaT")]),
    hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_side=0, max_dims=2, max_side=2)),
)
VALUES = st.recursive(
    LEAVES,
    lambda nested: st.one_of(
        st.lists(nested, max_size=3),
        st.lists(nested, max_size=3).map(tuple),
        st.sets(st.integers(), max_size=2),
        st.dictionaries(ANY_TEXT, nested, max_size=2),
        st.lists(nested, max_size=2).map(iter),
    ),
    max_leaves=6,
)


@pytest.fixture
def steady_client(address: str, server: ModelServer) -> Iterator[Client]:
    """Yield a blocking client: one client and one server serve all examples."""
    with make_client("sync", address) as made:
        yield made


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_python_value_is_predicted_or_refused(
    steady_client: Client, server: ModelServer, data: st.DataObject
) -> None:
    dtype = data.draw(st.sampled_from([FLOAT, STRING, UINT8]))
    server.signatures["mirror"] = ({"x": (dtype, [-1])}, {"x": (dtype, [-1])})
    value = data.draw(VALUES)
    inputs = data.draw(st.sampled_from([value, {"x": value}, {"y": value}, {data.draw(ANY_TEXT): value}]))
    options = data.draw(
        st.fixed_dictionaries({}, optional={"output_filter": VALUES, "signature_name": VALUES, "priority": VALUES})
    )
    names = data.draw(st.fixed_dictionaries({}, optional={"version": VALUES, "label": VALUES}))
    model = data.draw(st.one_of(st.just("mirror"), VALUES))
    with suppress(TpuserveError):
        assert steady_client.predict(model, inputs, **options, **names).model == "mirror"
