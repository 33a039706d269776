"""Tests for comparisons with golden responses, alone and in whole runs against servers that fail under load."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.clients.oip_bodies import described, write_response
from tests.loadtests.doubling_server import MODEL, Doubling, serving
from tests.support import forked_command
from tpuserve_client.dtypes import Array
from tpuserve_client.exchange import Exchange, Reply
from tpuserve_client.model import ModelSpec, Signature, TensorSpec
from tpuserve_formats.messages import oip
from tpuserve_loadtests.golden.answers import AnswerChecks, CheckPlan, GoldenAnswers
from tpuserve_loadtests.golden.difference import find_difference
from tpuserve_loadtests.golden.form import WrongAnswer
from tpuserve_loadtests.golden.golden_file import GoldenRows
from tpuserve_loadtests.golden.tolerance import Tolerance
from tpuserve_loadtests.measurement.recorder import Delivery
from tpuserve_loadtests.requests.arrays import BadInput
from tpuserve_loadtests.requests.protocols import TITLES, Protocol
from tpuserve_loadtests.requests.wires import encode_golden
from tpuserve_loadtests.requests.workload import Line

BUSY_IS_FINE = ("--generator-limit", "note")
FLOAT = np.dtype(np.float32)


def floats(*values: float) -> dict[str, Array]:
    return {"y": np.array([values], FLOAT)}


def words(answer: Mapping[str, Array], golden: Mapping[str, Array], tolerance: Tolerance | None = None) -> str:
    found = find_difference(answer, golden, tolerance or Tolerance())
    return str(found or "")


def test_floats_may_differ_as_much_as_their_dtype_rounds() -> None:
    assert words(floats(1.00005), floats(1.0)) == ""
    assert (
        words(floats(1.3, 1.0), floats(1.0, 1.0))
        == "output 'y' differs by 0.3 at [0, 0]: 1.3 instead of 1.0; allowed 0.00011 "
        "(float32, without a manifest; change with --atol/--rtol)"
    )
    assert words(floats(1.3), floats(1.0), Tolerance(atol=0.5)) == ""
    coarse = np.dtype(ml_dtypes.bfloat16)
    assert words({"y": np.array([[1.01]], coarse)}, {"y": np.array([[1.0]], coarse)}) == ""


def test_the_worst_row_is_named() -> None:
    golden = {"y": np.zeros((4, 2), FLOAT)}
    answer = {"y": np.array([[0, 0], [0.1, 0], [0, -7], [0, 0]], FLOAT)}
    assert (
        words(answer, golden) == "output 'y' differs by 7 at [2, 1]: -7.0 instead of 0.0; allowed 1e-05 "
        "(float32, without a manifest; change with --atol/--rtol)"
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_equals_itself_alone(value: float) -> None:
    assert words(floats(value), floats(value)) == ""
    assert "differs by" in words(floats(value), floats(1.0))
    assert "differs by" in words(floats(1.0), floats(value))


def test_integers_and_texts_must_be_the_same() -> None:
    assert words({"n": np.array([1, 2])}, {"n": np.array([1, 3])}) == "output 'n' differs at [1]: 2 instead of 3"
    texts = np.array([b"cat", b"dog"], object)
    assert words({"t": texts}, {"t": texts.copy()}) == ""
    assert words({"t": texts[::-1]}, {"t": texts}) == "output 't' differs at [0]: b'dog' instead of b'cat'"


def test_other_outputs_shapes_and_dtypes_are_told() -> None:
    assert words({}, floats(1.0)) == "output 'y' is missing; the response has []"
    assert words(floats(1.0, 2.0), floats(1.0)) == "output 'y' has shape [1, 2] instead of [1, 1]"
    assert words({"y": np.array([[1.0]])}, floats(1.0)) == "output 'y' has dtype float64 instead of float32"


def golden_of(*rows: dict[str, Array]) -> tuple[bytes, ...]:
    return tuple(map(encode_golden, rows))


def test_requests_that_all_have_the_same_answer_are_noticed() -> None:
    assert GoldenAnswers(golden_of(floats(1.0), floats(1.0)), Tolerance()).are_alike()
    assert not GoldenAnswers(golden_of(floats(1.0), floats(1.0), floats(2.0)), Tolerance()).are_alike()


OF_LINES = Signature("s", {"x": TensorSpec("x", FLOAT, (None,))}, {"y": TensorSpec("y", FLOAT, (None, 1))})


def line_of(protocol: Protocol, *rows: dict[str, Array]) -> Line:
    golden = golden_of(*rows)
    exchanges = (Exchange("/", b""),) * len(golden)
    return Line(protocol, protocol, ModelSpec("m"), OF_LINES, exchanges, (1,) * len(golden), golden)


def reply_of(protocol: Protocol, outputs: dict[str, Array]) -> Reply:
    match protocol:
        case "grpc":
            return Reply(encode_golden(outputs))
        case "rest":
            (array,) = outputs.values()  # a single output has no name
            return Reply(json.dumps({"outputs": array.tolist()}).encode())
        case "oip_grpc":
            response = oip.ModelInferResponse(raw_output_contents=[array.tobytes() for array in outputs.values()])
            for name, array in outputs.items():
                response.outputs.add(**described(name, array))
            return Reply(response.SerializeToString())
        case "oip_http":
            return Reply(*write_response(outputs))
    items = [{**described(name, array), "data": array.ravel().tolist()} for name, array in outputs.items()]
    return Reply(json.dumps({"outputs": items}).encode())


@pytest.mark.parametrize("protocol", TITLES)
def test_an_answer_is_held_against_the_one_of_its_own_request(protocol: Protocol) -> None:
    line = line_of(protocol, floats(1.0), floats(2.0))
    checks = AnswerChecks([line], CheckPlan(1.0), seed=0)
    for turn in range(4):
        checks.check(line, turn, reply_of(protocol, floats(1.0 + turn % 2 + 1e-6)), 0.0, Delivery())
    with pytest.raises(
        WrongAnswer,
        match=r"^wrong response: output 'y' differs by 1 at \[0, 0\]: 2.0 instead of 1.0; allowed 0.00011 "
        r"\(float32, without a manifest; .*/--rtol\); it match",
    ):
        checks.check(line, 2, reply_of(protocol, floats(2.0)), 0.0, Delivery())
    with pytest.raises(
        WrongAnswer,
        match=r"differs by 6 at \[0, 0\]: 8.0 instead of 2.0; allowed 0.00021 "
        r"\(float32, without a manifest; change with --atol/--rtol\)$",
    ):
        checks.check(line, 3, reply_of(protocol, floats(8.0)), 0.0, Delivery())
    # Counted with the first error of its kind.
    with pytest.raises(
        WrongAnswer,
        match=r"differs by 6 at \[0, 0\]: 8.0 instead of 2.0; allowed 0.00021 "
        r"\(float32, without a manifest; change with --atol/--rtol\)$",
    ):
        checks.check(line, 3, reply_of(protocol, floats(9.0)), 0.0, Delivery())


@pytest.mark.parametrize("protocol", TITLES)
def test_a_response_that_cannot_be_compared_is_wrong(protocol: Protocol) -> None:
    line = line_of(protocol, floats(1.0))
    checks = AnswerChecks([line], CheckPlan(1.0), seed=0)
    without_y = reply_of(protocol, {"z": np.zeros(1, FLOAT)})
    for reply in (without_y, Reply(b"\xff unreadable"), Reply(b"")):
        with pytest.raises(WrongAnswer, match=r"^wrong response: "):
            checks.check(line, 0, reply, 0.0, Delivery())


@pytest.mark.parametrize("protocol", TITLES)
def test_the_form_is_checked_without_golden_answers(protocol: Protocol) -> None:
    line = replace(line_of(protocol, floats(1.0)), golden=())
    checks = AnswerChecks([line], CheckPlan(), seed=0)
    checks.check(line, 0, reply_of(protocol, floats(7.0)), 0.0, delivery := Delivery())
    assert not delivery.compared
    with pytest.raises(WrongAnswer, match=r"^wrong response: expected y: float32\[1, 1\], received "):
        checks.check(line, 0, Reply(b"\xff unreadable"), 0.0, Delivery())


def drawn(share: float | None, seed: int, responses: int, per_s: float = 1e9) -> list[int]:
    line = line_of("grpc", floats(1.0))
    checks = AnswerChecks([line], CheckPlan(share), seed)
    reply = reply_of("grpc", floats(1.0))
    deliveries = [Delivery() for _ in range(responses)]
    for number, delivery in enumerate(deliveries):
        checks.check(line, number, reply, number / per_s, delivery)
    return [number for number, delivery in enumerate(deliveries) if delivery.compared]


def test_the_share_of_answers_is_drawn_by_the_seed() -> None:
    some = drawn(0.01, 7, 100_000)
    assert some[0] == 0
    # A thousand, plus or minus four standard deviations.
    assert 870 < len(some) < 1130
    assert some == drawn(0.01, 7, 100_000) != drawn(0.01, 8, 100_000)
    assert len(drawn(1.0, 7, 50)) == 50


def test_all_responses_are_compared_at_low_rates() -> None:
    assert len(drawn(None, 7, 200, per_s=19)) == 200
    assert 180 < len(drawn(None, 7, 2000, per_s=200)) < 300
    assert len(drawn(0.01, 7, 200, per_s=20)) < 20


def test_frequent_rows_leave_comparisons_to_rare_ones() -> None:
    golden = golden_of(floats(1.0), floats(2.0))
    line = Line("grpc", "grpc", ModelSpec("m"), OF_LINES, (Exchange("/", b""),) * 100, (8, *(1,) * 99), golden)
    line = replace(line, signature=replace(OF_LINES, inputs={}))  # without rows in the form
    checks = AnswerChecks([line], CheckPlan(), seed=0)
    right = reply_of("grpc", floats(1.0)), reply_of("grpc", floats(2.0))
    # At 1,900 a second, each of the two golden answers comes 19 times a second.
    deliveries = [Delivery() for _ in range(2000)]
    for turn, delivery in enumerate(deliveries):
        checks.check(line, turn, right[min(turn % 100, 1)], turn / 1900, delivery)
    compared = [delivery.compared for delivery in deliveries]
    assert sum(compared[::100]) == sum(compared[1::100]) == 20
    assert not any(compared[2::100])


SIGNATURE = Signature(
    "s",
    {"x": TensorSpec("x", FLOAT, (None, 2))},
    {"x": TensorSpec("x", FLOAT, (None, 2)), "label": TensorSpec("label", np.dtype(object), (None,))},
)
X = [[1.0, 2.0], [3.0, 4.0]]
ROWS = [{"x": row, "label": label} for row, label in zip(X, ["a", "b"], strict=True)]


def test_golden_rows_come_from_npz_and_json(tmp_path: Path) -> None:
    arrays = {"inputs/x": np.array(X), "outputs/x": np.array(X), "label": np.array(["a", "b"])}
    np.savez(tmp_path / "g.npz", **arrays)  # type: ignore[arg-type]  # numpy's stubs know of one keyword more
    (tmp_path / "columns.json").write_text(json.dumps({"inputs": X, "outputs": {"x": X, "label": ["a", "b"]}}))
    (tmp_path / "rows.json").write_text(json.dumps({"instances": [{"x": row} for row in X], "predictions": ROWS}))
    for name in ("g.npz", "columns.json", "rows.json"):
        golden = GoldenRows.read(tmp_path / name, SIGNATURE)
        assert golden.inputs["x"].tolist() == golden.outputs["x"].tolist() == X
        assert golden.outputs["x"].dtype == FLOAT
        assert golden.outputs["label"].tolist() == [b"a", b"b"]


def test_one_array_is_no_golden_file_whatever_its_name(tmp_path: Path) -> None:
    with (tmp_path / "g.npz").open("wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(BadInput, match="expected inputs and outputs by name"):
        GoldenRows.read(tmp_path / "g.npz", SIGNATURE)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("g.csv", "1,2", "is not a file of golden responses"),
        ("g.json", "[1", "Expecting"),
        ("g.json", json.dumps({"inputs": X}), '"inputs" and "outputs"'),
        (
            "g.json",
            json.dumps({"inputs": X, "outputs": {"x": X}}),
            "outputs: expected ['label', 'x'] as in the model, received ['x']",
        ),
        ("g.json", json.dumps({"inputs": X[:1], "outputs": {"x": X, "label": ["a", "b"]}}), "same number of rows"),
        (
            "g.json",
            json.dumps({"inputs": X, "outputs": {"x": [[1], [2]], "label": ["a", "b"]}}),
            "outputs: expected x: ",
        ),
        ("g.npz", "PK\x03\x04", "truncated"),
    ],
)
def test_a_file_that_is_not_golden_says_what_is_missing(
    tmp_path: Path, name: str, content: str, complaint: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(BadInput) as raised:
        GoldenRows.read(tmp_path / name, SIGNATURE)
    assert complaint in str(raised.value)


# Whole runs.


@dataclass
class Erring(Doubling):
    """A server that errs after `alone` requests. If it is `empty`, its responses never have a row.

    Every `swap_every`-th response is an earlier one. Every `wrong_every`-th response is off, and so is
    each to a request of `wrong_rows` rows.
    """

    swap_every: int = 0
    wrong_every: int = 0
    wrong_rows: int = 0
    empty: bool = False
    alone: int = 64
    _last: list[np.ndarray] = field(default_factory=list)

    def run(self, x: np.ndarray) -> np.ndarray | None:
        y = super().run(x)
        assert y is not None
        if self.empty:
            return y[:0]
        # Skip the previous response: both protocols send the same requests alternately.
        count, earlier = len(self.rows), self._last[-2:-1]
        self._last[:] = [*self._last[-1:], y]
        if count > self.alone and self.swap_every and count % self.swap_every == 0 and earlier:
            return earlier[0]
        is_off = len(x) == self.wrong_rows or bool(self.wrong_every and count % self.wrong_every == 0)
        return y + 0.3 if count > self.alone and is_off else y


@pytest.fixture
def server() -> Iterator[Erring]:
    with serving(Erring()) as model:
        assert isinstance(model, Erring)
        yield model


def loadtest(server: Doubling, *arguments: str) -> forked_command.Ended:
    addresses = ["--grpc", server.grpc_address, "--rest", server.rest_url]
    # A schedule makes the number of requests independent of the machine's load.
    load = ["--rate", "200", "--arrivals", "constant", "--duration", "1", "--warm-up", "0"]
    return forked_command.run("tpuserve-loadtest", MODEL, *addresses, *load, *BUSY_IS_FINE, *arguments)


def test_right_answers_are_compared_and_none_is_wrong(server: Erring) -> None:
    run = loadtest(server, "--golden", "record", "--check-share", "1", "--json", "--fail-if", "wrong>0")
    assert run.returncode == 0, run.stdout
    report: dict[str, Any] = json.loads(run.stdout)
    assert report["wrong_rate"] == 0
    assert report["total"]["checked"] == report["total"]["requests"] == 200
    # The command first sends each different request once over each protocol.
    assert len(server.rows) == report["total"]["requests"] + 2 * 32
    assert "Recording 64 golden responses, one at a time" in run.stderr
    assert not any("golden" in note for note in report["notes"])


@pytest.mark.slow
def test_a_comparison_shows_how_the_answers_of_b_differ(server: Erring) -> None:
    load = ("--rate", "100", "--rounds", "3", "--duration", "300ms", "--warm-up", "0", "--unclear", "note")
    with serving(Erring(wrong_every=1, alone=0)) as other:
        sides = ("compare", MODEL, server.grpc_address, other.grpc_address)
        run = forked_command.run("tpuserve-loadtest", *sides, *load, *BUSY_IS_FINE)
        same = (*sides[:-1], server.grpc_address)
        alike, found = (
            json.loads(forked_command.run("tpuserve-loadtest", *each, *load, *BUSY_IS_FINE, "--json").stdout)["parity"]
            for each in (same, sides)
        )
    assert alike == {"responses": 32, "different": 0, "differences": []}
    assert (found["responses"], found["different"], len(found["differences"])) == (32, 32, 10)
    values = r"at \[0, \d\]: [\d.]+ instead of [\d.]+; allowed 0.0\d+ \(any precision, "
    words = f"gRPC request 0: output 'y' differs by 0.3 {values}"
    assert re.match(words, found["differences"][0])
    printed = " ".join(run.stdout.split())
    assert re.search(f"note: B compared with A, before the load: 32 of 32 responses differ; {words}", printed), printed


def test_answers_given_back_to_the_wrong_user_are_found(server: Erring, tmp_path: Path) -> None:
    server.swap_every = 11
    junit = tmp_path / "load.xml"
    run = loadtest(server, "--golden", "record", "--check-share", "1", "--json", "--junit", str(junit))
    assert run.returncode == 1, run.stdout
    report = json.loads(run.stdout)
    total = report["total"]
    # When requests overtake each other, the swapped response may belong to an equal request.
    assert 0.05 < report["wrong_rate"] <= 0.11
    assert total["failures"] == total["wrong"] == sum(error["count"] for error in report["errors"])
    messages = [error["message"] for error in report["errors"]]
    assert all(message.startswith("wrong response: output 'y' differs by ") for message in messages)
    assert all(message.endswith("; it matches the response of another request") for message in messages)
    assert {error["protocol"] for error in report["errors"]} == {"grpc", "rest"}
    assert '<testcase classname="loadtest" name="answers are right">' in junit.read_text()
    assert '<testcase classname="loadtest" name="requests are answered" />' in junit.read_text()


def test_one_in_a_hundred_that_is_off_fails_its_own_gate_and_no_other(server: Erring) -> None:
    server.wrong_every = 100
    gates = ("--fail-if", "wrong_rate>0.1%", "error_rate>50%")
    run = loadtest(server, "--golden", "record", "--check-share", "1", *gates)
    assert run.returncode == 99, run.stdout
    assert "failed: wrong_rate 1 %, fails if > 0.1 %" in run.stdout
    assert "passed: error_rate" in run.stdout
    # The place depends on the request: the float nearest to zero, whose limit is the smallest.
    assert re.search(r"wrong response: output 'y' differs by 0.3 at \[0, [0-3]\]: ", run.stdout)
    assert "responses compared with golden responses were wrong" in run.stdout


def test_a_rare_number_of_rows_that_is_off_is_found(server: Erring) -> None:
    server.wrong_rows, server.alone = 8, 128 + 2 * 3
    run = loadtest(server, "--rows", "1:0.99,8:0.01", "--json")
    assert run.returncode == 1, run.stdout
    assert "8 rows" in json.loads(run.stdout)["errors"][0]["line"]


def test_a_share_of_answers_is_compared_by_several_processes(server: Erring) -> None:
    server.wrong_every = 2
    options = ("--golden", "record", "--check-share", "0.2", "--processes", "2", "--json")
    report = json.loads(loadtest(server, *options).stdout)
    total = report["total"]
    assert 0.05 < total["checked"] / total["requests"] < 0.5
    assert 0.2 < report["wrong_rate"] < 0.8


def test_golden_answers_of_a_file_are_right_whatever_the_server_says(server: Erring, tmp_path: Path) -> None:
    x = np.arange(20, dtype=np.float32).reshape(5, 4)
    y = x * 2
    y[3] += 1
    np.savez(tmp_path / "golden.npz", x=x, y=y)
    run = loadtest(server, "--golden", str(tmp_path / "golden.npz"), "--check-share", "1", "--json")
    report = json.loads(run.stdout)
    assert run.returncode == 1
    assert 0.15 < report["wrong_rate"] < 0.25  # a fifth of the requests
    assert len(server.rows) == report["total"]["requests"]


def test_responses_without_rows_are_a_note(server: Erring) -> None:
    server.empty = True
    notes = json.loads(loadtest(server, "--json").stdout)["notes"]
    assert "grpc: output 'y' has the length 0 in the golden response to a request of 1 row" in notes


def test_requests_that_are_alike_are_a_note(server: Erring, tmp_path: Path) -> None:
    np.savez(tmp_path / "same.npz", x=np.ones((3, 4), np.float32))
    run = loadtest(server, "--golden", "record", "--input", str(tmp_path / "same.npz"))
    assert run.returncode == 0
    assert "note: grpc: all requests have the same golden response" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--golden", "off", "--check-share", "0.5"), "--check-share needs golden responses"),
        (("--golden", "record", "--check-share", "0"), "0.0 is not in the range"),
        (("--golden", "nowhere.npz"), "does not exist"),
        (("--golden", "record", "--fail-if", "wrong>5ms"), "wrong needs no unit"),
    ],
)
def test_what_cannot_be_compared_is_exit_code_2(server: Erring, arguments: tuple[str, ...], complaint: str) -> None:
    run = loadtest(server, *arguments)
    assert run.returncode == 2
    assert complaint in run.stderr
    assert server.rows == []


def test_a_request_that_fails_alone_ends_it_before_the_load(server: Erring) -> None:
    server.garbled = True
    run = loadtest(server, "--golden", "record")
    assert run.returncode == 1
    assert "Error: Cannot record golden responses: grpc, request 1 of 32: " in run.stderr
    assert "Traceback" not in run.stderr
    assert len(server.rows) == 1
