"""TensorFlow Serving's gRPC, with its official messages."""

from typing import Final

import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    input_pb2,
    model_pb2,
    predict_pb2,
    regression_pb2,
)

from tests.soak.connections import Connections
from tests.soak.hints import Hints
from tests.soak.question import CLASSIFY, FEATURE, REGRESS, Question, WrongAnswerError
from tests.soak.reply import Reply

PROTOCOL: Final = "TF gRPC"
_PREDICTION: Final = "/tensorflow.serving.PredictionService/"
_MODEL: Final = "/tensorflow.serving.ModelService/"


async def predict(at: Connections, question: Question, hints: Hints) -> Reply:
    request = predict_pb2.PredictRequest(model_spec=_spec(question))
    for name, values in question.inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(values))
    content = await at.call(_PREDICTION + "Predict", request.SerializeToString(), hints)
    response = predict_pb2.PredictResponse.FromString(content)
    outputs = {name: tf.make_ndarray(proto) for name, proto in response.outputs.items()}
    return Reply(question.prove(outputs), response.model_spec.version.value)


async def classify(at: Connections, question: Question, hints: Hints) -> Reply:
    request = classification_pb2.ClassificationRequest(model_spec=_spec(question, CLASSIFY), input=_examples(question))
    content = await at.call(_PREDICTION + "Classify", request.SerializeToString(), hints)
    response = classification_pb2.ClassificationResponse.FromString(content)
    return Reply(_classes(question, response.result), response.model_spec.version.value)


async def regress(at: Connections, question: Question, hints: Hints) -> Reply:
    request = regression_pb2.RegressionRequest(model_spec=_spec(question, REGRESS), input=_examples(question))
    content = await at.call(_PREDICTION + "Regress", request.SerializeToString(), hints)
    response = regression_pb2.RegressionResponse.FromString(content)
    values = [one.value for one in response.result.regressions]
    return Reply(question.prove_values(values), response.model_spec.version.value)


async def multi_inference(at: Connections, question: Question, hints: Hints) -> Reply:
    """Ask both signatures of one version in one request."""
    request = inference_pb2.MultiInferenceRequest(input=_examples(question))
    for name in (CLASSIFY, REGRESS):
        request.tasks.add(model_spec=_spec(question, name), method_name=f"tensorflow/serving/{name}")
    content = await at.call(_PREDICTION + "MultiInference", request.SerializeToString(), hints)
    results = inference_pb2.MultiInferenceResponse.FromString(content).results
    if len(results) != 2:
        raise WrongAnswerError(f"{len(results)} results for 2 tasks")
    versions = {
        _classes(question, results[0].classification_result),
        question.prove_values([one.value for one in results[1].regression_result.regressions]),
        *(one.model_spec.version.value for one in results),
    }
    if len(versions) != 1:
        raise WrongAnswerError(f"MultiInference by versions {versions}")
    return Reply(versions.pop())


async def metadata(at: Connections, question: Question, hints: Hints) -> Reply:
    request = get_model_metadata_pb2.GetModelMetadataRequest(
        model_spec=_spec(question), metadata_field=["signature_def"]
    )
    content = await at.call(_PREDICTION + "GetModelMetadata", request.SerializeToString(), hints)
    response = get_model_metadata_pb2.GetModelMetadataResponse.FromString(content)
    found = get_model_metadata_pb2.SignatureDefMap()
    response.metadata["signature_def"].Unpack(found)
    if found.signature_def["serving_default"].inputs.keys() != question.inputs.keys():
        raise WrongAnswerError(f"metadata of {question.model}: {str(found)[:300]}")
    return Reply(None, response.model_spec.version.value)


async def status(at: Connections, question: Question, hints: Hints) -> Reply:
    """Ask for the status, which has a version in every state of the server."""
    request = get_model_status_pb2.GetModelStatusRequest(model_spec=_spec(question))
    content = await at.call(_MODEL + "GetModelStatus", request.SerializeToString(), hints)
    response = get_model_status_pb2.GetModelStatusResponse.FromString(content)
    if not any(one.version for one in response.model_version_status):
        raise WrongAnswerError(f"no version of {question.model}: {response}")
    return Reply(None)


def _classes(question: Question, result: classification_pb2.ClassificationResult) -> int:
    rows = [[(one.label, one.score) for one in row.classes] for row in result.classifications]
    return question.prove_classes(rows)


def _spec(question: Question, signature: str = "") -> model_pb2.ModelSpec:
    spec = model_pb2.ModelSpec(name=question.model, signature_name=signature)
    if question.label:
        spec.version_label = question.label
    if question.version:
        spec.version.value = question.version
    return spec


def _examples(question: Question) -> input_pb2.Input:
    given = input_pb2.Input()
    for x in question.x:
        example = given.example_list.examples.add()
        example.features.feature[FEATURE].int64_list.value.append(x)
    return given
