"""TensorFlow Serving's contract: Classify, Regress and MultiInference."""

import numpy as np
from grpc import StatusCode
from tensorflow_serving.apis import classification_pb2, inference_pb2, input_pb2, regression_pb2

from tests.contract.serving_client import ServingClient, example, predict_request, refused

CLASSIFY, REGRESS = "tensorflow/serving/classify", "tensorflow/serving/regress"


def _input(*xs: float) -> input_pb2.Input:
    return input_pb2.Input(example_list=input_pb2.ExampleList(examples=[example(x=x) for x in xs]))


def _classify(*xs: float, signature: str = "classify_x_to_y") -> classification_pb2.ClassificationRequest:
    request = classification_pb2.ClassificationRequest(input=_input(*xs))
    request.model_spec.name = "half"
    request.model_spec.signature_name = signature
    return request


def _regress(*xs: float, signature: str = "regress_x_to_y") -> regression_pb2.RegressionRequest:
    request = regression_pb2.RegressionRequest(input=_input(*xs))
    request.model_spec.name = "half"
    request.model_spec.signature_name = signature
    return request


def _multi(*tasks: tuple[str, str], model: str = "half") -> inference_pb2.MultiInferenceRequest:
    request = inference_pb2.MultiInferenceRequest(input=_input(2.0))
    for signature, method in tasks:
        task = request.tasks.add(method_name=method)
        task.model_spec.name = model
        task.model_spec.signature_name = signature
    return request


def test_classify_gives_scores_row_by_row(serving: ServingClient) -> None:
    response = serving.classify(_classify(2.0, 4.0))
    classes = [[(c.label, c.score) for c in row.classes] for row in response.result.classifications]
    assert classes == [[("", 4.0)], [("", 5.0)]]
    assert response.model_spec.name == "half"
    assert response.model_spec.version.value == 124
    assert response.model_spec.signature_name == "classify_x_to_y"


def test_classify_gives_labels_where_the_model_has_them(serving: ServingClient) -> None:
    response = serving.classify(_classify(2.0, signature="classify_both"))
    assert [(c.label, c.score) for c in response.result.classifications[0].classes] == [("4.0", 4.0)]


def test_regress_gives_a_value_a_row(serving: ServingClient) -> None:
    response = serving.regress(_regress(2.0, 4.0))
    assert [row.value for row in response.result.regressions] == [4.0, 5.0]
    assert response.model_spec.signature_name == "regress_x_to_y"


def test_context_features_are_merged_into_every_example(serving: ServingClient) -> None:
    request = _regress()
    request.input.CopyFrom(
        input_pb2.Input(
            example_list_with_context=input_pb2.ExampleListWithContext(
                context=example(x=2.0), examples=[example(x2=1.0), example(x=6.0)]
            )
        )
    )
    assert [row.value for row in serving.regress(request).result.regressions] == [4.0, 6.0]


def test_classify_and_regress_by_version_and_label(serving: ServingClient) -> None:
    classify, regress = _classify(2.0), _regress(2.0)
    classify.model_spec.version.value = 123
    regress.model_spec.version_label = "stable"
    assert serving.classify(classify).result.classifications[0].classes[0].score == 3.0
    assert serving.regress(regress).result.regressions[0].value == 3.0


def test_multi_inference_answers_task_by_task(serving: ServingClient) -> None:
    response = serving.multi_inference(_multi(("regress_x_to_y", REGRESS), ("classify_x_to_y", CLASSIFY)))
    first, second = response.results
    assert first.regression_result.regressions[0].value == 4.0
    assert second.classification_result.classifications[0].classes[0].score == 4.0
    assert [result.model_spec.signature_name for result in response.results] == ["regress_x_to_y", "classify_x_to_y"]
    assert {result.model_spec.version.value for result in response.results} == {124}


# Errors: spec, section 1.


def test_classify_with_an_unknown_signature(serving: ServingClient) -> None:
    with refused(StatusCode.INVALID_ARGUMENT, "No signature was found with the name: absent"):
        serving.classify(_classify(1.0, signature="absent"))


def test_regress_with_an_unknown_signature(serving: ServingClient) -> None:
    with refused(StatusCode.INVALID_ARGUMENT, "No signature was found with the name: absent"):
        serving.regress(_regress(1.0, signature="absent"))


def test_no_examples(serving: ServingClient) -> None:
    with refused(StatusCode.INVALID_ARGUMENT, "Input is empty."):
        serving.classify(_classify())
    with refused(StatusCode.INVALID_ARGUMENT, "Input is empty."):
        serving.regress(_regress())


def test_no_input_at_all(serving: ServingClient) -> None:
    request = _regress()
    request.ClearField("input")
    with refused(StatusCode.INVALID_ARGUMENT, "Input is empty."):
        serving.regress(request)


def test_classify_without_a_spec_or_a_name(serving: ServingClient) -> None:
    with refused(StatusCode.INVALID_ARGUMENT, "Missing ModelSpec"):
        serving.classify(classification_pb2.ClassificationRequest(input=_input(1.0)))
    with refused(StatusCode.NOT_FOUND, "Servable not found for request: Latest(nobody)"):
        request = _classify(1.0)
        request.model_spec.name = "nobody"
        serving.classify(request)


def test_an_example_that_lacks_a_feature(serving: ServingClient) -> None:
    request = _regress()
    request.input.example_list.examples.append(example(other=1.0))
    with refused(StatusCode.INVALID_ARGUMENT, "x"):
        serving.regress(request)


def test_multi_inference_of_two_models(serving: ServingClient) -> None:
    request = _multi(("regress_x_to_y", REGRESS), ("classify_x_to_y", CLASSIFY))
    request.tasks[1].model_spec.name = "kinds"
    with refused(StatusCode.INVALID_ARGUMENT, "must access the same model name."):
        serving.multi_inference(request)


def test_multi_inference_of_one_signature_twice(serving: ServingClient) -> None:
    with refused(StatusCode.INVALID_ARGUMENT, "Duplicate evaluation of signature: regress_x_to_y"):
        serving.multi_inference(_multi(("regress_x_to_y", REGRESS), ("regress_x_to_y", REGRESS)))


def test_multi_inference_of_an_unknown_signature(serving: ServingClient) -> None:
    with refused(StatusCode.INVALID_ARGUMENT, "Requested signature not found in model graph: absent"):
        serving.multi_inference(_multi(("absent", REGRESS)))


def test_multi_inference_by_an_unknown_method(serving: ServingClient) -> None:
    with refused(StatusCode.UNIMPLEMENTED, "Unsupported signature method_name: tensorflow/serving/predict"):
        serving.multi_inference(_multi(("regress_x_to_y", "tensorflow/serving/predict")))


def test_a_signatures_own_method_name_is_not_checked(serving: ServingClient) -> None:
    assert serving.regress(_regress(2.0, signature="strange")).result.regressions[0].value == 4.0


def test_predict_takes_serialized_examples_too(serving: ServingClient) -> None:
    request = predict_request("half", "regress_x_to_y", inputs=[example(x=2.0).SerializeToString()])
    np.testing.assert_array_equal(list(serving.predict(request).outputs["outputs"].float_val), [4.0])
