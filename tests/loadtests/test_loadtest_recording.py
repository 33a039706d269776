"""Tests for recorded requests, read from the server's files."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.loadtests.recorded_logs import START_S, numbered, predict_entry, write_log
from tpuserve_client import tensor
from tpuserve_client.dtypes import Array
from tpuserve_client.model import ModelSpec, Signature, TensorSpec
from tpuserve_formats.messages import official
from tpuserve_loadtests.requests.arrays import BadInput
from tpuserve_loadtests.requests.recording import BadRecording, Recording, merged_timeline, recorded_requests
from tpuserve_server.observe.request_log.writer import LogKind

FORMS = ("log.jsonl", "log.tfrecord")
X = TensorSpec("x", np.dtype(np.float32), (None, 4))
SIGNATURE = Signature("serving_default", {"x": X}, {})


def sent(recording: Recording, signature: Signature = SIGNATURE) -> list[dict[str, Array]]:
    """Return the inputs that the load test would send over gRPC to another version."""
    messages = [
        official.PredictRequest.FromString(request.exchange(ModelSpec("new", version=8), "grpc").body)
        for request in recorded_requests(recording, signature)
    ]
    assert {(message.model_spec.name, message.model_spec.version.value) for message in messages} == {("new", 8)}
    return [{name: tensor.from_proto(proto) for name, proto in message.inputs.items()} for message in messages]


@pytest.mark.parametrize("name", FORMS)
def test_requests_of_the_servers_log_are_sent_again_in_the_order_of_their_times(tmp_path: Path, name: str) -> None:
    times = (2, 0, 1)
    entries = [predict_entry(numbered(time, rows=time + 1), START_S + time) for time in times]
    recording = Recording.read([write_log(tmp_path / name, entries)])
    assert [request["x"].tolist() for request in sent(recording)] == [[[t] * 4] * (t + 1) for t in range(3)]
    assert [request.rows for request in recorded_requests(recording, SIGNATURE)] == [1, 2, 3]
    assert recording.instants() == (START_S + 0.5, START_S + 1.5, START_S + 2.5)
    assert recording.notes == ()


def test_a_request_goes_over_grpc_as_it_was_encoded(tmp_path: Path) -> None:
    entry = predict_entry({"x": np.full(1, 3, np.float32)}, typed=True)
    recording = Recording.read([write_log(tmp_path / "log.tfrecord", [entry])])
    vector = Signature("serving_default", {"x": TensorSpec("x", np.dtype(np.float32), (None,))}, {})
    (recorded,) = recorded_requests(recording, vector)
    message = official.PredictRequest.FromString(recorded.exchange(ModelSpec("new"), "grpc").body)
    assert list(message.inputs["x"].float_val) == [3.0]
    assert message.inputs["x"].tensor_content == b""
    over_rest = json.loads(recorded.exchange(ModelSpec("new"), "rest").body)
    assert over_rest == {"inputs": {"x": [3.0]}, "signature_name": "serving_default"}
    over_oip = json.loads(recorded.exchange(ModelSpec("new"), "oip_json").body)
    assert over_oip == {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [3.0]}]}


@pytest.mark.parametrize(
    "array",
    [
        np.array([1.5, np.nan, np.inf], np.float32),
        np.array([[1.5, -2]], np.float64),
        np.array([-3, 127], np.int8),
        np.array([2**62, -5], np.int64),
        np.array([2**63], np.uint64),
        np.array([True, False]),
        np.array([1.5, -2], ml_dtypes.bfloat16),
        np.array([1.5, -2], np.float16),
        np.array([1 + 2j, -3j], np.complex64),
        np.array([b"a", b"\xff\x00"], object),
        np.arange(4000, dtype=np.float32).reshape(2, 2000),  # sent as base64
        np.float32(7) * np.ones(()),
    ],
)
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("typed", [True, False])
def test_every_kind_of_tensor_is_read(tmp_path: Path, array: Array, name: str, typed: bool) -> None:
    entry = predict_entry({"x": array}, START_S, typed=typed)
    spec = TensorSpec("x", array.dtype, (None,) * array.ndim)
    recording = Recording.read([write_log(tmp_path / name, [entry])])
    (request,) = sent(recording, Signature("serving_default", {"x": spec}, {}))
    assert request["x"].dtype == array.dtype
    np.testing.assert_array_equal(request["x"], array)


def test_requests_of_a_second_are_spread_over_it_evenly(tmp_path: Path) -> None:
    entries = [predict_entry(numbered(n), START_S + n // 4 + 0.9) for n in range(8)]
    recording = Recording.read([write_log(tmp_path / "log.tfrecord", entries)])
    timeline = merged_timeline([(recording, 2)], speed=2)
    assert timeline.instants == tuple(n / 8 for n in range(8))
    assert timeline.order == (0, 1) * 4


def test_recordings_of_several_models_are_merged_by_time(tmp_path: Path) -> None:
    first, second = [
        Recording.read([write_log(tmp_path / f"{start}.jsonl", [predict_entry({}, start + n) for n in (0, 2)])])
        for start in (START_S, START_S + 1)
    ]
    timeline = merged_timeline([(first, 1), (second, 1)])
    assert list(timeline.instants) == [0, 1, 2, 3]
    assert timeline.order == (0, 1, 0, 1)


def test_files_of_a_log_are_read_together(tmp_path: Path) -> None:
    paths = [write_log(tmp_path / f"{n}.jsonl", [predict_entry(numbered(n), START_S + n)]) for n in (1, 0)]
    assert [request["x"][0, 0] for request in sent(Recording.read(paths))] == [0, 1]


def test_a_sample_says_what_share_it_is_of(tmp_path: Path) -> None:
    entries = [predict_entry({}, START_S, sampled=0.1), predict_entry({}, START_S, sampled=0.1)]
    assert Recording.read([write_log(tmp_path / "log.tfrecord", entries)]).sampled == pytest.approx(0.1)
    assert Recording.read([write_log(tmp_path / "log.jsonl", [predict_entry({})])]).sampled == 1


def test_a_warm_up_file_has_no_times(tmp_path: Path) -> None:
    recording = Recording.read([write_log(tmp_path / "tf_serving_warmup_requests", [predict_entry({}, model="")] * 3)])
    assert recording.instants() is None
    assert len(recording.of_model("any").logged) == 3
    with pytest.raises(BadRecording, match=r"tf_serving_warmup_requests has no request times.* --rate or --users"):
        merged_timeline([(recording, 1)])


@pytest.mark.parametrize("name", FORMS)
def test_a_log_that_is_being_written_is_read_to_its_last_whole_record(tmp_path: Path, name: str) -> None:
    path = write_log(tmp_path / name, [predict_entry(numbered(n), START_S) for n in range(3)])
    content = path.read_bytes()
    for missing in (1, 5, 40):
        path.write_bytes(content[:-missing])
        recording = Recording.read([path])
        assert len(recording.logged) == 2
        assert recording.notes == (
            f"{name}: skipped an incomplete record at the end; the file is truncated, or still being written",
        )


def test_what_is_not_sent_is_said(tmp_path: Path) -> None:
    entries = [
        predict_entry({}, START_S),
        predict_entry({}, START_S, kind=LogKind.CLASSIFY),
        predict_entry({}, START_S, model="other"),
        predict_entry({}, START_S, signature="embed"),
    ]
    recording = Recording.read([write_log(tmp_path / "log.jsonl", entries)])
    kept = recording.of_model("doubling").of_signature("serving_default", "serving_default")
    assert len(kept.logged) == 1
    assert kept.notes == (
        "log.jsonl: skipped 1 record of other kinds than predict",
        "log.jsonl: skipped 1 request for other models than doubling",
        "log.jsonl: skipped 1 request for other signatures than serving_default",
    )


def test_recordings_of_another_model_or_signature_are_refused(tmp_path: Path) -> None:
    recording = Recording.read([write_log(tmp_path / "log.jsonl", [predict_entry({}, START_S)])])
    with pytest.raises(BadRecording, match=r"requests for doubling, but none for digits\. .* --recorded-model"):
        recording.of_model("digits")
    with pytest.raises(BadRecording, match="requests for serving_default, but none for embed"):
        recording.of_signature("embed", "serving_default")


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        (
            TensorSpec("x", np.dtype(np.float32), (None, 5)),
            r"request 1: .*x: float32\[\?, 5\]; the recorded request has float32\[1, 4\]",
        ),
        (TensorSpec("x", np.dtype(np.float32), (4,)), r"request has float32\[1, 4\]"),
        (TensorSpec("x", np.dtype(np.int32), (None, 4)), r"int32\[\?, 4\]; the recorded request has float32"),
        (TensorSpec("z", np.dtype(np.float32), (None, 4)), r"inputs are \['z'\]; the recorded request has \['x'\]"),
    ],
)
def test_requests_that_do_not_fit_the_model_are_refused(tmp_path: Path, spec: TensorSpec, complaint: str) -> None:
    recording = Recording.read([write_log(tmp_path / "log.tfrecord", [predict_entry(numbered(1), START_S)])])
    with pytest.raises(BadInput, match=complaint):
        list(recorded_requests(recording, Signature("serving_default", {spec.name: spec}, {})))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "contains no predict request"),
        (b"a text that is long enough to have a length\n", "record 1: a length has a wrong checksum"),
        (b'{"predict_log": \n', "record 1: a line is not a PredictionLog"),
        (
            b'{"predict_log": {"request": {"inputs": {"x": {"dtype": "DT_ODD"}}}}}\n',
            "record 1: a line is not a PredictionLog: FormatError: dtype 0 is not supported",
        ),
        (
            b'{"predict_log": {"request": {"inputs": {"x": {"dtype": "DT_HALF", "half_val": [86729]}}}}}\n',
            "record 1: a line is not a PredictionLog: FormatError: half_val contains a value outside the range of half",
        ),
        (
            b'{"predict_log": {"request": {"inputs": {"x": {"dtype": "DT_FLOAT", "float_val": [1.5], "tensor_shape": '
            b'{"dim": [{"size": "4000000000"}, {"size": "4000000000"}]}}}}}}\n',
            r"record 1: .*: FormatError: shape \[4000000000, 4000000000\] is too large",
        ),
        (b'{"log_metadata": {}}\n', "contains no predict request"),
        (b"{}\n[1]\n", "record 2: a line is not a PredictionLog"),
    ],
)
def test_files_that_are_no_recordings_are_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.raises(BadRecording, match=complaint):
        Recording.read([path])


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.tfrecord", [predict_entry(numbered(n), START_S) for n in range(2)])
    content = bytearray(path.read_bytes())
    content[len(content) // 2 + 30] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadRecording, match=r"log\.tfrecord: record 2: a record has a wrong checksum"):
        Recording.read([path])


def test_a_record_whose_length_looks_like_json_is_none(tmp_path: Path) -> None:
    entries = (predict_entry(numbered(1, rows), model="m" * pad) for rows in range(1, 40) for pad in range(16))
    entry = next(entry for entry in entries if len(entry.serialize()) % 256 == ord("{"))
    path = write_log(tmp_path / "log.tfrecord", [entry])
    assert path.read_bytes().startswith(b"{")
    assert len(Recording.read([path]).logged) == 1
