"""The harness of `make strangers`, on small models that share a server: it finds right, refused and wrong ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.strangers.__main__ import main
from tests.strangers.catalogue.tf1_graphs import ENVIRONMENT, MODELS, TENSORS
from tests.strangers.stranger import Export, Refusal, Stranger

HERE = "tests.strangers.test_strangers"


def save_lying(folder: Path) -> dict[str, Any]:
    """A model whose answers are not those that it is said to have, in the last of its rows."""
    import numpy as np
    import tensorflow as tf

    module = tf.Module()
    doubled = tf.function(lambda x: {"y": 2 * x}, input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
    tf.saved_model.save(module, str(folder / "saved"), signatures=doubled.get_concrete_function())
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    said = 2 * x
    said[2, 1] += 0.5
    return {"serving_default": [({"x": x}, {"y": said})]}


def save_honest(folder: Path) -> dict[str, Any]:
    """Two inputs, of which one is text; three outputs, of which one has no elements."""
    import numpy as np
    import tensorflow as tf

    def call(x: Any, word: Any) -> dict[str, Any]:  # noqa: ANN401 - tensors
        return {"half": x / 2, "upper": tf.strings.upper(word), "nothing": x[:, :0]}

    specs = [tf.TensorSpec([None, 2], tf.float32, name="x"), tf.TensorSpec([None], tf.string, name="word")]
    signature = tf.function(call, input_signature=specs).get_concrete_function()
    tf.saved_model.save(tf.Module(), str(folder / "saved"), signatures=signature)
    inputs = {"x": np.arange(6, dtype=np.float32).reshape(3, 2), "word": np.array([b"a", b"", b"grosse"], object)}
    return {"serving_default": [(inputs, {name: value.numpy() for name, value in call(**inputs).items()})]}


STRANGERS = (
    Stranger("honest", f"{HERE}:save_honest", (Export("SavedModel", "saved", ("--batch-sizes", "1,4")),)),
    Stranger("lying", f"{HERE}:save_lying", (Export("SavedModel", "saved", ("--batch-sizes", "1,4")),)),
    Stranger(
        "refused",
        f"{MODELS}:save",
        (
            Export("TF1 .meta", "model.ckpt-30.meta", TENSORS, refusal=Refusal(2, "is_training")),
            Export("with another reason", "model.ckpt-30.meta", TENSORS, refusal=Refusal(2, "no such phrase")),
        ),
        arguments={"idiom": "is_training_placeholder"},
        environment=ENVIRONMENT,
    ),
)
Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any]]:
    """Exit status and JSON document of a run over STRANGERS."""
    work = tmp_path_factory.mktemp("strangers")
    status = main(["--work", str(work / "work"), "--json", str(work / "lines.json"), "--jobs", "1"], [STRANGERS])
    document: dict[str, Any] = json.loads((work / "lines.json").read_text())
    return status, document


pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group(__name__)]


def _lines(document: dict[str, Any], stranger: str) -> Lines:
    return [line for line in document["lines"] if line["stranger"] == stranger]


def test_an_honest_model_is_right_by_every_protocol(ran: tuple[int, dict[str, Any]]) -> None:
    lines = _lines(ran[1], "honest")
    assert [line["protocol"] for line in lines] == ["export", "gRPC", "REST", "JSON"]
    assert {line["verdict"] for line in lines} == {"right"}, lines
    assert all(line[way] == 0 for line in lines[1:] for way in ("alone", "together", "at_once"))


def test_an_answer_that_differs_is_wrong_and_ends_the_run_with_1(ran: tuple[int, dict[str, Any]]) -> None:
    status, document = ran
    assert (status, document["ok"]) == (1, False)
    export, *asked = _lines(document, "lying")
    assert export["verdict"] == "right"
    assert [(line["verdict"], line["alone"]) for line in asked] == [("WRONG", 0.5)] * 3
    assert "y is off by up to 0.5" in asked[0]["reason"]


def test_a_refusal_is_held_to_its_reason(ran: tuple[int, dict[str, Any]]) -> None:
    expected, other = _lines(ran[1], "refused")
    assert (expected["verdict"], other["verdict"]) == ("refused", "WRONG")
    assert "is_training" in expected["reason"]
    assert "no such phrase" in other["reason"]


def test_a_stranger_that_there_is_not_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "honest,nobody*"], [STRANGERS]) == 2
    assert capsys.readouterr().err == "no stranger is called nobody*; there are honest, lying, refused\n"
