"""Tests for REST's classify and regress with a real SavedModel."""

import gzip
import json
from collections.abc import Iterator

import pytest

from tests.support.example_models import CLASSIFY, REGRESS, save_example_model
from tests.support.fakes import Finished
from tests.support.served_model import ServedModel
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.protocols.tf_rest import v1

EXAMPLES = [{"x": 0.25}, {"x": [1.0]}, {"x": -3.0, "bonus": 1.0}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    with ServedModel(save_example_model(tmp_path_factory.mktemp("example") / "7")) as served:
        yield served


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    path = save_example_model(tmp_path_factory.mktemp("checked") / "7")
    with ServedModel(path, check_method_names=True) as served:
        yield served


@pytest.mark.parametrize(
    ("signature", "results"),
    [
        ("classify", [[["low", 0.25], ["high", 0.75]], [["low", 1.0], ["high", 0.0]], [["low", -3.0], ["high", 4.0]]]),
        ("scores", [[["", 0.25], ["", 0.75]], [["", 1.0], ["", 0.0]], [["", -3.0], ["", 4.0]]]),
        ("classes", [[["low", 0.0], ["high", 0.0]]] * 3),
    ],
)
async def test_classify_gives_label_and_score_of_every_class(
    model: ServedModel, signature: str, results: object
) -> None:
    response = await model.post(":classify", {"signature_name": signature, "examples": EXAMPLES})
    assert (response.status_code, response.json()) == (200, {"results": results})
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-tpuserve-model-version"] == "7"


@pytest.mark.parametrize("signature", [{}, {"signature_name": ""}, {"signature_name": "flat"}])
@pytest.mark.parametrize("target", ["", "/versions/7"])
async def test_regress_gives_a_value_for_every_example(
    model: ServedModel, signature: dict[str, str], target: str
) -> None:
    response = await model.post(f"{target}:regress", {**signature, "examples": EXAMPLES})
    assert (response.status_code, response.content) == (200, b'{"results":[2.125,2.5,1.5]}')


async def test_a_context_lends_its_features_to_every_example(model: ServedModel) -> None:
    body = {"context": {"bonus": 10.0, "x": 100.0}, "examples": [{"x": 2.0}, {}]}
    assert (await model.post(":regress", body)).json() == {"results": [13.0, 62.0]}


async def test_a_label_stands_for_a_version(model: ServedModel) -> None:
    model.registry.assign_labels("m", {"stable": 7})
    response = await model.post("/labels/stable:regress", {"examples": [{"x": 2.0}]})
    assert (response.status_code, response.json()) == (200, {"results": [3.0]})
    response = await model.post("/labels/other:classify", {"signature_name": "classify", "examples": [{"x": 2.0}]})
    assert (response.status_code, response.json()["error"]) == (400, "Unrecognized servable version label: other")


async def test_not_finite_numbers_go_both_ways(model: ServedModel) -> None:
    body = b'{"examples": [{"x": NaN}, {"x": Infinity}, {"x": -Infinity}, {"x": 1e39}, {"x": 2.0}]}'
    response = await model.post(":regress", body)
    assert response.content == b'{"results":[NaN,Infinity,-Infinity,Infinity,3.0]}'
    response = await model.post(":classify", body.replace(b"{", b'{"signature_name": "scores", ', 1))
    assert response.content.startswith(b'{"results":[[["",NaN],["",NaN]],[["",Infinity],["",-Infinity]],')


async def test_a_large_body_is_answered_as_a_small_one_is(model: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    small = await model.post(":regress", {"examples": EXAMPLES})
    monkeypatch.setattr(v1, "LARGE_BODY_BYTES", 0)
    large = await model.post(":regress", {"examples": EXAMPLES})
    assert (large.status_code, large.content) == (200, small.content)


async def test_a_compressed_body_is_read(model: ServedModel) -> None:
    body = gzip.compress(json.dumps({"examples": EXAMPLES}).encode())
    response = await model.post(":regress", body, headers={"content-encoding": "gzip"})
    assert (response.status_code, response.json()) == (200, {"results": [2.125, 2.5, 1.5]})


async def test_requests_are_measured_under_their_method(model: ServedModel) -> None:
    model.metrics.finished.clear()
    await model.post(":regress", {"examples": EXAMPLES})
    await model.post(":classify", {"examples": []})
    finished = [Finished(one.model, one.method, one.protocol, one.code, 0) for one in model.metrics.finished]
    assert finished == [
        Finished("m", "Regress", "rest", Code.OK, 0),
        Finished("m", "Classify", "rest", Code.INVALID_ARGUMENT, 0),
    ]
    assert (model.metrics.finished[0].version, model.metrics.finished[0].signature) == (7, "serving_default")


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        (":classify", b"", 400, "JSON Parse error: The document is empty"),
        (":classify", [1], 400, "JSON Value: [1] Is not object"),
        (
            ":regress",
            {"instances": [1.0]},
            400,
            "JSON Value: {\n    \"instances\": [1.0]\n} When method is classify, key 'examples' is expected and was not"
            " found",
        ),
        (":regress", {"examples": EXAMPLES, "signature_name": "s"}, 400, "No signature was found with the name: s"),
        (":classify", {"examples": EXAMPLES, "signature_name": "s"}, 400, "No signature was found with the name: s"),
        (":classify", {"examples": EXAMPLES}, 400, "Expected classification signature outputs to contain at least one"),
        ("/versions/9:regress", {"examples": EXAMPLES}, 404, "Servable not found for request: Specific(m, 9)"),
        # Like upstream, the body is checked before the model.
        ("/versions/9:regress", {"examples": {}}, 400, "Expecting 'examples' value to be an list/array"),
        ("n:regress", {"examples": EXAMPLES}, 404, "Servable not found for request: Latest(mn)"),
        (":regress", {"examples": [{"bonus": 1.0}]}, 400, "x (data type: float) is required but could not be found"),
        (":regress", {"examples": [{"x": 1}]}, 400, "Data types don't match"),
    ],
)
async def test_what_is_refused_and_how(model: ServedModel, path: str, body: object, status: int, text: str) -> None:
    response = await model.post(path, body)
    assert response.status_code == status
    assert response.json().keys() == {"error"}
    assert text in response.json()["error"]


async def test_method_names_are_checked_when_asked_for(checked: ServedModel) -> None:
    response = await checked.post(":classify", {"examples": EXAMPLES})
    assert (response.status_code, json.loads(response.content)["error"]) == (
        400,
        f"Expected classification signature method_name to be {CLASSIFY}. Was: {REGRESS}",
    )
    assert (await checked.post(":regress", {"examples": EXAMPLES})).status_code == 200
