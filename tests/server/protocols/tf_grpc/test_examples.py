"""Tests for Classify, Regress and MultiInference on gRPC, with real SavedModels."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorflow_serving.apis import classification_pb2, inference_pb2, input_pb2, regression_pb2

from tests.support.example_models import CLASSIFY, REGRESS, example, save_example_model, save_native_example_model
from tests.support.fakes import Finished
from tests.support.served_model import ServedModel
from tpuserve_server.core.batching.parameters import BatchingParameters
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import Code, ServingError
from tpuserve_server.versions.loading import LoadingOptions

EXAMPLES = [example(x=0.25), example(x=1.0), example(x=-3.0)]
BATCHED = LoadingOptions(enable_batching=True, parameters=BatchingParameters(allowed_batch_sizes=(4, 8)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    with ServedModel(save_example_model(tmp_path_factory.mktemp("example") / "7")) as served:
        yield served


@pytest.fixture(scope="module")
def batched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    with ServedModel(save_native_example_model(tmp_path_factory.mktemp("native") / "7"), BATCHED) as served:
        yield served


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    path = save_example_model(tmp_path_factory.mktemp("checked") / "7")
    with ServedModel(path, check_method_names=True) as served:
        yield served


def spec(signature_name: str = "", **more: object) -> dict[str, Any]:
    return {"name": "m", "signature_name": signature_name, **more}


def listed(*examples: Any) -> input_pb2.Input:  # noqa: ANN401 (Examples)
    return input_pb2.Input(example_list=input_pb2.ExampleList(examples=examples))


def with_context(context: Any, *examples: Any) -> input_pb2.Input:  # noqa: ANN401 (Examples)
    return input_pb2.Input(
        example_list_with_context=input_pb2.ExampleListWithContext(context=context, examples=examples)
    )


def classification(signature_name: str, *examples: Any) -> classification_pb2.ClassificationRequest:  # noqa: ANN401 (Examples)
    return classification_pb2.ClassificationRequest(model_spec=spec(signature_name), input=listed(*examples))


def regression(signature_name: str, *examples: Any) -> regression_pb2.RegressionRequest:  # noqa: ANN401 (Examples)
    return regression_pb2.RegressionRequest(model_spec=spec(signature_name), input=listed(*examples))


def tasks(*wanted: tuple[str, str], model: str = "m") -> list[inference_pb2.InferenceTask]:
    return [
        inference_pb2.InferenceTask(model_spec={"name": model, "signature_name": name}, method_name=method)
        for name, method in wanted
    ]


async def classify(
    served: ServedModel, request: classification_pb2.ClassificationRequest
) -> classification_pb2.ClassificationResponse:
    return classification_pb2.ClassificationResponse.FromString(await served.call("Classify", request))


async def regress(served: ServedModel, request: regression_pb2.RegressionRequest) -> regression_pb2.RegressionResponse:
    return regression_pb2.RegressionResponse.FromString(await served.call("Regress", request))


async def infer(
    served: ServedModel, request: inference_pb2.MultiInferenceRequest
) -> inference_pb2.MultiInferenceResponse:
    return inference_pb2.MultiInferenceResponse.FromString(await served.call("MultiInference", request))


def pairs(result: classification_pb2.ClassificationResult) -> list[list[tuple[str, float]]]:
    return [[(one.label, one.score) for one in row.classes] for row in result.classifications]


@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        ("classify", [[("low", 0.25), ("high", 0.75)], [("low", 1.0), ("high", 0.0)], [("low", -3.0), ("high", 4.0)]]),
        ("scores", [[("", 0.25), ("", 0.75)], [("", 1.0), ("", 0.0)], [("", -3.0), ("", 4.0)]]),
        ("classes", [[("low", 0.0), ("high", 0.0)]] * 3),
    ],
)
async def test_classify_answers_each_example_with_its_classes(
    model: ServedModel, signature: str, expected: list[list[tuple[str, float]]]
) -> None:
    response = await classify(model, classification(signature, *EXAMPLES))
    assert pairs(response.result) == expected
    assert response.model_spec.version.value == 7
    assert (response.model_spec.name, response.model_spec.signature_name) == ("m", signature)


@pytest.mark.parametrize("signature", ["", "serving_default", "flat"])
async def test_regress_answers_each_example_with_its_value(model: ServedModel, signature: str) -> None:
    response = await regress(model, regression(signature, *EXAMPLES))
    assert [one.value for one in response.result.regressions] == [2.125, 2.5, 0.5]
    assert response.model_spec.signature_name == (signature or "serving_default")


async def test_a_context_lends_its_features_to_every_example(model: ServedModel) -> None:
    request = regression_pb2.RegressionRequest(
        model_spec=spec(), input=with_context(example(bonus=10.0, x=100.0), example(x=2.0), example())
    )
    response = await regress(model, request)
    # The second Example has no x and takes it from the context.
    assert [one.value for one in response.result.regressions] == [13.0, 62.0]


async def test_multi_inference_runs_every_task_over_the_same_examples(model: ServedModel) -> None:
    wanted = tasks(("classify", CLASSIFY), ("", REGRESS), ("scores", CLASSIFY))
    response = await infer(model, inference_pb2.MultiInferenceRequest(tasks=wanted, input=listed(*EXAMPLES[:1])))
    first, second, third = response.results
    assert pairs(first.classification_result) == [[("low", 0.25), ("high", 0.75)]]
    assert [one.value for one in second.regression_result.regressions] == [2.125]
    assert pairs(third.classification_result) == [[("", 0.25), ("", 0.75)]]
    names = [result.model_spec.signature_name for result in response.results]
    assert names == ["classify", "serving_default", "scores"]
    assert {result.model_spec.version.value for result in response.results} == {7}


async def test_examples_share_batches_as_rows_do(batched: ServedModel) -> None:
    response = await classify(batched, classification("classify", *EXAMPLES))
    assert [row[0][1] for row in pairs(response.result)] == [0.25, 1.0, -3.0]
    assert batched.batches.batches[-1] == (3, 4)


async def test_requests_are_measured_under_their_method(model: ServedModel) -> None:
    model.metrics.finished.clear()
    await regress(model, regression("", *EXAMPLES))
    with pytest.raises(ServingError):
        await model.call("MultiInference", b"")
    finished = [Finished(one.model, one.method, one.protocol, one.code, 0) for one in model.metrics.finished]
    assert finished == [
        Finished("m", "Regress", "grpc", Code.OK, 0),
        Finished("", "MultiInference", "grpc", Code.INVALID_ARGUMENT, 0),
    ]


async def refusal(served: ServedModel, method: str, request: Any) -> tuple[Code, str]:  # noqa: ANN401 (a message or bytes)
    with pytest.raises(ServingError) as caught:
        await served.call(method, request)
    return caught.value.code, caught.value.message


@pytest.mark.parametrize(
    ("method", "request_", "code", "text"),
    [
        ("Classify", b"\xff", Code.INVALID_ARGUMENT, "Malformed ClassificationRequest"),
        ("Regress", b"\xff", Code.INVALID_ARGUMENT, "Malformed RegressionRequest"),
        ("MultiInference", b"\xff", Code.INVALID_ARGUMENT, "Malformed MultiInferenceRequest"),
        ("Classify", b"", Code.INVALID_ARGUMENT, "Missing ModelSpec"),
        ("Regress", b"", Code.INVALID_ARGUMENT, "Missing ModelSpec"),
        (
            "Classify",
            classification_pb2.ClassificationRequest(model_spec={}),
            Code.INVALID_ARGUMENT,
            "ModelSpec has no name specified.",
        ),
        (
            "Regress",
            regression_pb2.RegressionRequest(model_spec={"name": "n"}, input=listed(*EXAMPLES)),
            Code.NOT_FOUND,
            "Servable not found for request: Latest(n)",
        ),
        (
            "Classify",
            classification_pb2.ClassificationRequest(model_spec=spec("classify", version={"value": 9})),
            Code.NOT_FOUND,
            "Servable not found for request: Specific(m, 9)",
        ),
        ("Classify", classification("s", *EXAMPLES), Code.INVALID_ARGUMENT, "No signature was found with the name: s"),
        ("Regress", regression("s", *EXAMPLES), Code.INVALID_ARGUMENT, "No signature was found with the name: s"),
        ("Classify", classification("classify"), Code.INVALID_ARGUMENT, "Input is empty."),
        (
            "Classify",
            classification_pb2.ClassificationRequest(model_spec=spec("classify")),
            Code.INVALID_ARGUMENT,
            "Input is empty.",
        ),
        (
            "Regress",
            regression_pb2.RegressionRequest(model_spec=spec(), input=with_context(example(x=1.0))),
            Code.INVALID_ARGUMENT,
            "Input is empty.",
        ),
        ("Regress", regression("two_inputs", *EXAMPLES), Code.INVALID_ARGUMENT, "Expected one input Tensor."),
        ("Classify", classification("two_inputs", *EXAMPLES), Code.INVALID_ARGUMENT, "Expected one input Tensor."),
        ("Regress", regression("classify", *EXAMPLES), Code.INVALID_ARGUMENT, "Expected one output Tensor."),
        (
            "Classify",
            classification("three_outputs", *EXAMPLES),
            Code.INVALID_ARGUMENT,
            "Expected one or two output Tensors, found 3",
        ),
        (
            "Classify",
            classification("flat_classes", *EXAMPLES),
            Code.INVALID_ARGUMENT,
            "Expected Tensor shape: [batch_size num_classes] but got [3]",
        ),
        (
            "Classify",
            classification("flat_scores", *EXAMPLES),
            Code.INVALID_ARGUMENT,
            "Expected Tensor shape: [batch_size num_classes] but got [3]",
        ),
        (
            "Classify",
            classification("number_classes", *EXAMPLES),
            Code.INVALID_ARGUMENT,
            "Expected classes Tensor of DT_STRING. Got: DT_FLOAT",
        ),
        (
            "Classify",
            classification("double_scores", *EXAMPLES),
            Code.INVALID_ARGUMENT,
            "Expected scores Tensor of DT_FLOAT. Got: DT_DOUBLE",
        ),
        (
            "Classify",
            classification("short_classes", *EXAMPLES),
            Code.INVALID_ARGUMENT,
            "Expected classes output batch size of 3. Got: 1",
        ),
        (
            "Classify",
            classification("short_scores", *EXAMPLES),
            Code.INVALID_ARGUMENT,
            "Expected scores output batch size of 3. Got: 1",
        ),
        (
            "Classify",
            classification("uneven", *EXAMPLES),
            Code.INVALID_ARGUMENT,
            "Tensors class and score should match in dim_size(1). Got 2 vs. 1",
        ),
        (
            "Regress",
            regression("wide_regression", *EXAMPLES),
            Code.INVALID_ARGUMENT,
            "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got [3,2]",
        ),
        (
            "Regress",
            regression("short_regression", *EXAMPLES),
            Code.INVALID_ARGUMENT,
            "Input batch size did not match output batch size: 3 vs. 1",
        ),
        (
            "Regress",
            regression("double_regression", *EXAMPLES),
            Code.INVALID_ARGUMENT,
            "Expected output Tensor of DT_FLOAT.  Got: DT_DOUBLE",
        ),
        (
            "MultiInference",
            inference_pb2.MultiInferenceRequest(input=listed(*EXAMPLES)),
            Code.INVALID_ARGUMENT,
            "ModelSpec has no name specified.",
        ),
        (
            "MultiInference",
            inference_pb2.MultiInferenceRequest(
                tasks=tasks(("", REGRESS)) + tasks(("classify", CLASSIFY), model=""), input=listed(*EXAMPLES)
            ),
            Code.INVALID_ARGUMENT,
            "Found ModelSpec with an empty model name.",
        ),
        (
            "MultiInference",
            inference_pb2.MultiInferenceRequest(
                tasks=tasks(("", REGRESS)) + tasks(("classify", CLASSIFY), model="n"), input=listed(*EXAMPLES)
            ),
            Code.INVALID_ARGUMENT,
            "All ModelSpecs in a MultiInferenceRequest must access the same model name.",
        ),
        (
            "MultiInference",
            inference_pb2.MultiInferenceRequest(
                tasks=tasks(("", REGRESS), ("serving_default", REGRESS)), input=listed(*EXAMPLES)
            ),
            Code.INVALID_ARGUMENT,
            "Duplicate evaluation of signature: serving_default",
        ),
        (
            "MultiInference",
            inference_pb2.MultiInferenceRequest(tasks=tasks(("s", REGRESS)), input=listed(*EXAMPLES)),
            Code.INVALID_ARGUMENT,
            "Requested signature not found in model graph: s",
        ),
        (
            "MultiInference",
            inference_pb2.MultiInferenceRequest(
                tasks=tasks(("", "tensorflow/serving/predict")), input=listed(*EXAMPLES)
            ),
            Code.UNIMPLEMENTED,
            "Unsupported signature method_name: tensorflow/serving/predict",
        ),
        (
            "MultiInference",
            inference_pb2.MultiInferenceRequest(tasks=tasks(("", REGRESS))),
            Code.INVALID_ARGUMENT,
            "Input is empty.",
        ),
        (
            "MultiInference",
            inference_pb2.MultiInferenceRequest(
                tasks=tasks(("", REGRESS), ("uneven", CLASSIFY)), input=listed(*EXAMPLES)
            ),
            Code.INVALID_ARGUMENT,
            "Tensors class and score should match in dim_size(1). Got 2 vs. 1",
        ),
    ],
)
async def test_what_is_refused_and_how(
    model: ServedModel,
    method: str,
    request_: Any,  # noqa: ANN401 (a message or bytes)
    code: Code,
    text: str,
) -> None:
    assert await refusal(model, method, request_) == (code, text)


@pytest.mark.parametrize(
    ("method", "request_", "text"),
    [
        ("Classify", classification("raw"), "No classification inputs found in SignatureDef: inputs {"),
        ("Regress", regression("raw"), "No regression inputs found in SignatureDef: inputs {"),
        ("Regress", regression("odd_regression"), "No regression outputs found in SignatureDef: inputs {"),
        (
            "Classify",
            classification("odd_classification"),
            'Expected classification signature outputs to contain at least one of "classes" or "scores".'
            " Signature was: inputs {",
        ),
    ],
)
async def test_a_signature_of_other_names_is_shown(model: ServedModel, method: str, request_: Any, text: str) -> None:  # noqa: ANN401 (a message)
    code, message = await refusal(model, method, request_)
    assert code is Code.INVALID_ARGUMENT
    assert message.startswith(text)
    assert "tf_example:0" in message or "ParseExample" in message


async def test_an_example_that_is_none_is_the_models_to_refuse(model: ServedModel) -> None:
    # field 2 (input) {field 1 (example_list) {field 1 (examples): two bytes that are not a message}}
    body = regression("").SerializeToString() + b"\x12\x06\x0a\x04\x0a\x02\xff\xff"
    code, message = await refusal(model, "Regress", body)
    assert code is Code.INVALID_ARGUMENT
    assert "Could not parse example input" in message


async def test_one_task_that_fails_fails_the_whole_request(model: ServedModel) -> None:
    wanted = tasks(("classify", CLASSIFY), ("", REGRESS))
    request = inference_pb2.MultiInferenceRequest(tasks=wanted, input=listed(example(bonus=1.0)))
    code, message = await refusal(model, "MultiInference", request)
    assert code is Code.INVALID_ARGUMENT
    assert "x" in message


async def test_a_request_that_is_cancelled_lets_its_version_go(tmp_path: Path) -> None:
    with ServedModel(save_example_model(tmp_path / "7")) as served:
        wanted = tasks(("classify", CLASSIFY), ("", REGRESS))
        request = inference_pb2.MultiInferenceRequest(tasks=wanted, input=listed(*EXAMPLES))
        call = asyncio.create_task(served.call("MultiInference", request))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        unloading = served.registry.unloading(served.id)
        # Returns when no request holds the version any more.
        assert served.registry.wait_idle(unloading) is served.loaded


async def test_a_deadline_that_has_passed_is_told(model: ServedModel) -> None:
    with pytest.raises(ServingError) as caught:
        await model.call("Regress", regression("", *EXAMPLES), Deadline(0.0))
    assert caught.value.code is Code.DEADLINE_EXCEEDED


async def test_method_names_are_checked_when_asked_for(checked: ServedModel) -> None:
    assert pairs((await classify(checked, classification("classify", *EXAMPLES))).result)
    assert await refusal(checked, "Classify", classification("serving_default", *EXAMPLES)) == (
        Code.INVALID_ARGUMENT,
        f"Expected classification signature method_name to be {CLASSIFY}. Was: {REGRESS}",
    )
    assert await refusal(checked, "Regress", regression("classify", *EXAMPLES)) == (
        Code.INVALID_ARGUMENT,
        f"Expected regression signature method_name to be {REGRESS}. Was: {CLASSIFY}",
    )
    request = inference_pb2.MultiInferenceRequest(tasks=tasks(("classify", REGRESS)), input=listed(*EXAMPLES))
    assert (await refusal(checked, "MultiInference", request))[1].startswith("Expected regression signature")
