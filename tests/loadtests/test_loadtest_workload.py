import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.clients.oip_bodies import read_request
from tpuserve_client import tensor
from tpuserve_client.dtypes import STRING, Array
from tpuserve_client.exchange import Exchange
from tpuserve_client.model import ModelSpec, Signature, TensorSpec
from tpuserve_formats.messages import official, oip
from tpuserve_loadtests.requests.arrays import (
    DRAWN_REQUESTS,
    EVERY_INPUT,
    RANDOM_REQUESTS,
    BadInput,
    array_requests,
    fit,
    random_inputs,
    read_inputs,
)
from tpuserve_loadtests.requests.distribution import Distribution
from tpuserve_loadtests.requests.protocols import Protocol
from tpuserve_loadtests.requests.workload import MAX_REQUESTS_BYTES, Turns, Workload, encode_lines, mixed_order

FLOAT = np.dtype(np.float32)
X = TensorSpec("x", FLOAT, (None, 2))
SPEC = ModelSpec("m", version=3)


def signature(*specs: TensorSpec) -> Signature:
    return Signature("serving_default", {spec.name: spec for spec in specs}, {})


def build_workload(
    spec: ModelSpec,
    signature: Signature,
    protocols: tuple[Protocol, ...],
    *,
    rows: int | str | None = None,
    inputs: Mapping[str, Array] | None = None,
    lengths: Mapping[str, str] | None = None,
) -> Workload:
    requests = array_requests(
        signature,
        rows=None if rows is None else Distribution.parse(str(rows)),
        inputs=inputs,
        lengths={name: Distribution.parse(text) for name, text in (lengths or {}).items()},
    )
    return Workload(encode_lines(protocols, spec, signature, protocols, requests))


def exchanges_by_protocol(workload: Workload) -> dict[str, tuple[Exchange, ...]]:
    return {line.protocol: line.exchanges for line in workload.lines}


def sent_by_grpc(workload: Workload) -> list[dict[str, Any]]:
    requests = [official.PredictRequest.FromString(item.body) for item in exchanges_by_protocol(workload)["grpc"]]
    return [{name: tensor.from_proto(proto) for name, proto in request.inputs.items()} for request in requests]


def test_a_file_is_cut_into_requests_and_its_start_fills_the_last() -> None:
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    sent = sent_by_grpc(build_workload(SPEC, signature(X), ("grpc",), rows=2, inputs={"x": x}))
    np.testing.assert_array_equal([request["x"] for request in sent], [x[0:2], x[2:4], x[[4, 0]]])


def test_fewer_rows_than_a_request_carries_are_repeated() -> None:
    x = np.array([[1, 2]], np.float32)
    (request,) = sent_by_grpc(build_workload(SPEC, signature(X), ("grpc",), rows=3, inputs={"x": x}))
    np.testing.assert_array_equal(request["x"], [[1, 2]] * 3)


def test_both_protocols_send_the_same_requests_to_the_model_and_version() -> None:
    both: tuple[Protocol, ...] = ("grpc", "rest")
    workload = build_workload(SPEC, signature(X), both, rows=4)
    exchanges = exchanges_by_protocol(workload)
    over_grpc, over_rest = sent_by_grpc(workload), [json.loads(item.body) for item in exchanges["rest"]]
    assert len(over_grpc) == len(over_rest) == RANDOM_REQUESTS
    for grpc_request, rest_request in zip(over_grpc, over_rest, strict=True):
        assert grpc_request["x"].shape == (4, 2)
        np.testing.assert_array_equal(grpc_request["x"], np.asarray(rest_request["inputs"]["x"], np.float32))
    assert exchanges["rest"][0].path == "/v1/models/m/versions/3:predict"
    assert official.PredictRequest.FromString(exchanges["grpc"][0].body).model_spec.version.value == 3


def test_the_forms_of_oip_send_the_same_requests_without_a_signature() -> None:
    forms: tuple[Protocol, ...] = ("oip_grpc", "oip_http", "oip_json")
    exchanges = exchanges_by_protocol(build_workload(SPEC, signature(X), forms, rows=4))
    assert exchanges["oip_http"][0].path == exchanges["oip_json"][0].path == "/v2/models/m/versions/3/infer"
    for number, over_grpc in enumerate(exchanges["oip_grpc"]):
        request = oip.ModelInferRequest.FromString(over_grpc.body)
        assert (request.model_version, dict(request.parameters)) == ("3", {})
        (raw,) = request.raw_input_contents
        over_http, over_json = exchanges["oip_http"][number], exchanges["oip_json"][number]
        document, inputs = read_request(over_http.body, over_http.headers)
        assert "signature_name" not in document["parameters"]
        assert inputs["x"].tobytes() == raw
        (tensor,) = json.loads(over_json.body)["inputs"]
        assert (tensor["datatype"], tensor["shape"]) == ("FP32", [4, 2])
        assert np.array(tensor["data"], np.float32).tobytes() == raw


def test_random_requests_differ_from_each_other_and_not_from_run_to_run() -> None:
    first, second = (build_workload(SPEC, signature(X), ("grpc",)) for _ in range(2))
    assert first == second
    assert len({exchange.body for exchange in first.lines[0].exchanges}) == RANDOM_REQUESTS


@pytest.mark.parametrize("order", [(0,), (0, 1), (0, 1, 1, 0, 1), (2, 0, 1, 0)])
def test_every_request_of_a_line_has_its_turn_however_requests_are_shared_out(order: tuple[int, ...]) -> None:
    turns = Turns(order)
    found: dict[int, list[int]] = {}
    for number in range(3 * len(order)):
        line, turn = turns.at(number)
        assert line == order[number % len(order)]
        found.setdefault(line, []).append(turn)
    assert all(turns_of_line == list(range(len(turns_of_line))) for turns_of_line in found.values())


def test_a_workload_knows_how_many_rows_a_request_has_on_average() -> None:
    small, large = (build_workload(SPEC, signature(X), ("grpc",), rows=rows).lines[0] for rows in (1, 7))
    assert Workload((small, large)).rows == 4
    assert Workload((small, large), order=(0, 0, 1, 0)).rows == 2.5


def test_rows_are_drawn_in_their_shares_and_the_same_in_every_run() -> None:
    first, second = (build_workload(SPEC, signature(X), ("grpc",), rows="1:0.75,8:0.25") for _ in range(2))
    assert first == second
    assert first.rows == 2.75
    sizes = [len(request["x"]) for request in sent_by_grpc(first)]
    assert Counter(sizes) == {1: 0.75 * DRAWN_REQUESTS, 8: 0.25 * DRAWN_REQUESTS}
    assert tuple(sizes) == first.lines[0].rows


def test_a_file_is_cut_into_requests_of_drawn_sizes_one_after_the_other() -> None:
    x = np.arange(20, dtype=np.float32).reshape(10, 2)
    sent = [
        request["x"]
        for request in sent_by_grpc(build_workload(SPEC, signature(X), ("grpc",), rows="2..3", inputs={"x": x}))
    ]
    assert {len(rows) for rows in sent} == {2, 3}
    np.testing.assert_array_equal(np.concatenate(sent), x[np.arange(sum(map(len, sent))) % 10])


def test_free_dimensions_have_drawn_lengths_that_inputs_share_unless_they_are_named() -> None:
    tokens = [TensorSpec(name, np.dtype(np.int64), (None, None)) for name in ("ids", "mask")]
    shared = sent_by_grpc(build_workload(SPEC, signature(*tokens), ("grpc",), lengths={EVERY_INPUT: "4..7"}))
    assert {request["ids"].shape for request in shared} == {(1, 4), (1, 5), (1, 6), (1, 7)}
    assert all(request["ids"].shape == request["mask"].shape for request in shared)
    named = sent_by_grpc(build_workload(SPEC, signature(*tokens), ("grpc",), lengths={"ids": "4"}))
    assert {(request["ids"].shape, request["mask"].shape) for request in named} == {((1, 4), (1, 1))}


@pytest.mark.parametrize(
    ("specs", "lengths", "complaint"),
    [
        ((X,), {"": "4"}, "no input of the model has a free dimension"),
        ((X, TensorSpec("ids", FLOAT, (None, None))), {"x": "4"}, r"expected one of \['ids'\]"),
    ],
)
def test_lengths_without_a_dimension_are_refused(
    specs: tuple[TensorSpec, ...], lengths: dict[str, str], complaint: str
) -> None:
    with pytest.raises(BadInput, match=complaint):
        build_workload(SPEC, signature(*specs), ("grpc",), lengths=lengths)


@pytest.mark.parametrize("shares", [(1,), (3, 1), (1, 1, 1), (0.9999, 0.0001), (5, 0.001, 0.001)])
def test_lines_get_their_shares_of_the_order_and_each_at_least_one_request(shares: tuple[float, ...]) -> None:
    order = mixed_order(shares)
    assert order == mixed_order(shares)
    for line, share in enumerate(shares):
        assert order.count(line) >= 1
        assert abs(order.count(line) / len(order) - share / sum(shares)) < 2 / len(order) * len(shares)


def test_huge_random_requests_are_made_once() -> None:
    huge = TensorSpec("x", FLOAT, (None, 8 * 2**20))
    assert len(build_workload(SPEC, signature(huge), ("grpc",), rows=3).lines[0].exchanges) == 1


@pytest.mark.parametrize("protocols", [("grpc",), ("grpc", "rest")])
def test_requests_from_a_file_hold_no_more_bytes_than_random_ones(protocols: tuple[Protocol, ...]) -> None:
    images = np.broadcast_to(np.float32(0.1), (1024, 224, 224, 3))
    spec = TensorSpec("x", FLOAT, (None, 224, 224, 3))
    exchanges = exchanges_by_protocol(build_workload(SPEC, signature(spec), protocols, inputs={"x": images}))
    counts = {len(of_protocol) for of_protocol in exchanges.values()}
    assert len(counts) == 1  # the same requests for each protocol
    sizes = [sum(len(exchange.body) for exchange in request) for request in zip(*exchanges.values(), strict=True)]
    assert MAX_REQUESTS_BYTES - max(sizes) < sum(sizes) <= MAX_REQUESTS_BYTES


def test_small_requests_from_a_file_are_all_kept() -> None:
    x = np.arange(400, dtype=np.float32).reshape(200, 2)
    assert len(build_workload(SPEC, signature(X), ("grpc",), inputs={"x": x}).lines[0].exchanges) == 200


@pytest.mark.parametrize("dtype", [FLOAT, np.dtype(np.int64), np.dtype(np.uint8), np.dtype(np.bool_), STRING])
def test_random_arrays_fit_the_signature(dtype: np.dtype[Any]) -> None:
    spec = TensorSpec("x", dtype, (None, 3, None))
    array = random_inputs(signature(spec), 5, {"x": 7}, np.random.default_rng(1))["x"]
    assert array.shape == (5, 3, 7)
    assert fit(array, spec) is array


def test_a_model_without_a_batch_dimension_takes_one_request_as_it_is() -> None:
    fixed = TensorSpec("x", FLOAT, (2,))
    workload = build_workload(SPEC, signature(fixed), ("grpc",), inputs={"x": np.ones(2, np.float32)})
    np.testing.assert_array_equal(sent_by_grpc(workload)[0]["x"], [1, 1])
    with pytest.raises(BadInput, match="no batch dimension"):
        build_workload(SPEC, signature(fixed), ("grpc",), rows=2)


def test_inputs_with_different_numbers_of_rows_are_refused() -> None:
    inputs = {"x": np.ones((2, 2), np.float32), "z": np.ones((3, 2), np.float32)}
    with pytest.raises(BadInput, match=r"same number of rows.*\[2, 3\]"):
        build_workload(SPEC, signature(X, TensorSpec("z", FLOAT, (None, 2))), ("grpc",), inputs=inputs)


@pytest.mark.parametrize(
    "document",
    [
        {"instances": [[1, 2], [3, 4]]},
        {"instances": [{"x": [1, 2]}, {"x": [3, 4]}]},
        {"inputs": [[1, 2], [3, 4]]},
        {"inputs": {"x": [[1, 2], [3, 4]]}},
        {"x": [[1, 2], [3, 4]]},
        [[1, 2], [3, 4]],
    ],
)
def test_every_json_form_gives_the_same_array(tmp_path: Path, document: object) -> None:
    path = tmp_path / "in.json"
    path.write_text(json.dumps(document))
    got = read_inputs(path, signature(X))
    assert got["x"].dtype == np.float32
    np.testing.assert_array_equal(got["x"], [[1, 2], [3, 4]])


def test_numpy_files_are_read_and_take_the_models_dtype(tmp_path: Path) -> None:
    x = np.array([[1.5, 2]])  # float64
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x)
    for name in ("x.npy", "x.npz"):
        got = read_inputs(tmp_path / name, signature(X))["x"]
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("kept", [0, 1, 4, 20, 100, -30])
@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_numpy_files_cut_short_are_refused(tmp_path: Path, suffix: str, kept: int) -> None:
    path = tmp_path / f"x{suffix}"
    x = np.ones((50, 2), np.float32)
    np.savez(path, x=x) if suffix == ".npz" else np.save(path, x)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(BadInput, match=str(path)):
        read_inputs(path, signature(X))


def test_a_file_that_numpy_would_take_for_a_pickle_is_refused_for_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(bytes(range(256)))
    with pytest.raises(BadInput, match=r"is not \.npz or \.npy"):
        read_inputs(tmp_path / "x.npz", signature(X))


def test_compressed_file_with_broken_content_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", x=np.arange(4000, dtype=np.float32).reshape(-1, 2))
    content = bytearray((tmp_path / "x.npz").read_bytes())
    content[60:600] = b"\xff" * 540
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(BadInput, match=r"x\.npz"):
        read_inputs(tmp_path / "x.npz", signature(X))


def test_bottomless_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[" * 5000)
    with pytest.raises(BadInput, match=r"x\.json"):
        read_inputs(tmp_path / "x.json", signature(X))


def test_rows_of_several_inputs_become_columns(tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    path.write_text('{"instances": [{"x": [1, 2], "s": "a"}, {"x": [3, 4], "s": {"b64": "Yg=="}}]}')
    got = read_inputs(path, signature(X, TensorSpec("s", STRING, (None,))))
    np.testing.assert_array_equal(got["x"], [[1, 2], [3, 4]])
    assert got["s"].tolist() == [b"a", b"b"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "Expecting"),
        ('{"y": [[1, 2]]}', r"expected \['x'\] as in the model, received \['y'\]"),
        ('{"instances": []}', "must be a list of rows"),
        ('{"x": [1, 2]}', r"x: float32\[\?, 2\] as in the model, received shape \[2\]"),
        ('{"x": [[1, 2, 3]]}', r"shape \[1, 3\]"),
        ('{"x": [["a", "b"]]}', "could not convert"),
    ],
)
def test_files_that_do_not_fit_are_refused_with_the_reason(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "in.json"
    path.write_text(content)
    with pytest.raises(BadInput, match=complaint):
        read_inputs(path, signature(X))


def test_a_lossy_dtype_and_an_unknown_kind_of_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="dtype float64"):
        fit(np.ones((1, 2)), TensorSpec("x", np.dtype(np.int32), (None, 2)))
    with pytest.raises(BadInput, match="is not a file of inputs"):
        read_inputs(tmp_path / "x.csv", signature(X))


def test_a_bare_array_needs_a_model_with_a_single_input(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 2), np.float32))
    with pytest.raises(BadInput, match="received one without a name"):
        read_inputs(tmp_path / "x.npy", signature(X, TensorSpec("z", FLOAT, (None,))))
