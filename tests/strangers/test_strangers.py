"""The harness of `make strangers` on one small model: it finds correct, refused and wrong outputs."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.strangers.__main__ import main
from tests.strangers.line import Line, Verdict
from tests.strangers.stranger import Export, Refusal, Stranger

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group(__name__)]

BATCH_SIZES = ("--batch-sizes", "1,4")


def save(folder: Path) -> dict[str, Any]:
    """Save a model with two signatures. The expected output of `doubled` is wrong in its last row."""
    import numpy as np
    import tensorflow as tf

    def mixed(x: Any, word: Any) -> dict[str, Any]:  # noqa: ANN401 - tensors
        return {"half": x / 2, "upper": tf.strings.upper(word), "nothing": x[:, :0]}

    x, word = tf.TensorSpec([None, 2], tf.float32, "x"), tf.TensorSpec([None], tf.string, "word")
    signatures = {
        "serving_default": tf.function(mixed).get_concrete_function(x, word),
        "doubled": tf.function(lambda x: {"y": 2 * x}).get_concrete_function(x),
    }
    tf.saved_model.save(tf.Module(), str(folder / "saved"), signatures=signatures)
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    words = np.array([b"a", b"", b"grosse"], object)
    answer = {"half": rows / 2, "upper": np.array([b"A", b"", b"GROSSE"], object), "nothing": rows[:, :0]}
    wrong = 2 * rows
    wrong[2, 1] += 0.5
    return {"serving_default": [({"x": rows, "word": words}, answer)], "doubled": [({"x": rows}, {"y": wrong})]}


def die(folder: Path) -> None:
    """End the process from the model's own code."""
    del folder
    os._exit(0)


STRANGER = Stranger(
    "small",
    "tests.strangers.test_strangers:save",
    (
        Export("SavedModel", "saved", BATCH_SIZES),
        Export("no such file", "absent", BATCH_SIZES, refusal=Refusal(6, "there is no file or directory")),
    ),
)
# Its process ends before it returns outputs.
DEAD = Stranger("dead", "tests.strangers.test_strangers:die", (Export("SavedModel", "saved"),))
Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any]]:
    """Return exit status and JSON document of a run over STRANGER."""
    work = tmp_path_factory.mktemp("strangers")
    status = main(
        ["--work", str(work / "work"), "--json", str(work / "lines.json"), "--jobs", "1"], [[DEAD], [STRANGER]]
    )
    document: dict[str, Any] = json.loads((work / "lines.json").read_text())
    return status, document


def _lines(document: dict[str, Any], **fields: str) -> Lines:
    return [line for line in document["lines"] if fields.items() <= line.items()]


def test_right_answers_are_right_by_every_protocol(ran: tuple[int, dict[str, Any]]) -> None:
    lines = _lines(ran[1], signature="serving_default")
    assert [line["protocol"] for line in lines] == ["gRPC", "REST", "JSON"]
    assert {line["verdict"] for line in lines} == {"right"}, lines
    assert all(line[way] == 0 for line in lines for way in ("alone", "together", "at_once"))


def test_an_answer_that_differs_is_wrong_and_ends_the_run_with_1(ran: tuple[int, dict[str, Any]]) -> None:
    status, document = ran
    assert (status, document["ok"]) == (1, False)
    requested = _lines(document, signature="doubled")
    assert [(line["verdict"], line["alone"]) for line in requested] == [("WRONG", 0.5)] * 3
    assert "y differs by up to 0.5" in requested[0]["reason"]


def test_exports_are_right_or_refused_with_their_reason(ran: tuple[int, dict[str, Any]]) -> None:
    published, refused = _lines(ran[1], protocol="export")
    assert (published["verdict"], refused["verdict"]) == ("right", "refused")
    assert "there is no file or directory" in refused["reason"]


def test_a_model_whose_process_dies_is_a_wrong_line(ran: tuple[int, dict[str, Any]]) -> None:
    (line,) = _lines(ran[1], stranger="dead")
    assert (line["protocol"], line["verdict"]) == ("save", "WRONG")
    assert "exited with status 0 before it returned its outputs" in line["reason"]


def test_an_interrupted_run_prints_the_lines_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> Iterator[Line]:
        yield Line("first", "SavedModel", "", "export", Verdict.RIGHT)
        raise KeyboardInterrupt

    monkeypatch.setattr("tests.strangers.__main__.run", interrupted)
    assert main(["--work", str(tmp_path), "--json", str(tmp_path / "lines.json")], [[STRANGER]]) == 130
    assert "first" in capsys.readouterr().out
    document = json.loads((tmp_path / "lines.json").read_text())
    assert (document["ok"], [line["stranger"] for line in document["lines"]]) == (False, ["first"])


def test_an_unknown_stranger_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "small,absent*"], [[STRANGER]]) == 2
    assert capsys.readouterr().err == "Unknown model absent*. The models are small.\n"
