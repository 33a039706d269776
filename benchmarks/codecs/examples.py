"""Cost of the codecs of tf.Examples, without transport, batcher and model, next to conversion through messages.

A section of `python -m benchmarks codecs`: microseconds per request, the best of several rounds.
"""

import json
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np
from tensorflow.core.example.example_pb2 import Example
from tensorflow_serving.apis import classification_pb2, input_pb2

from benchmarks.codecs.report import CodecCost, CodecTable
from tpuserve_server.wire.example_methods import encode_classifications, json_classifications
from tpuserve_server.wire.example_request import example_array, parse_example_request
from tpuserve_server.wire.json.examples import decode_json_examples

ROUNDS, ROUND_S = 7, 0.05
CLASSES = 100
Features = dict[str, Any]  # as in JSON


def measure() -> CodecTable:
    """Time the codecs of Classify and Regress. Takes half a minute."""
    costs = [
        CodecCost(f"{count} x {what}", cost(here), cost(plainly))
        for count in (1, 32, 256)
        for what, here, plainly in pairs(count)
    ]
    return CodecTable("tf.Examples", "us", costs)


def pairs(count: int) -> list[tuple[str, Callable[[], object], Callable[[], object]]]:
    """Return the comparisons for `count` Examples."""
    rows = [features(index) for index in range(count)]
    request = request_bytes(rows)
    body = json.dumps({"examples": rows}).encode()
    labels = np.array([[f"class {index}".encode() for index in range(CLASSES)]] * count, np.object_)
    scores = np.random.default_rng(0).random((count, CLASSES), np.float32)
    return [
        ("decode ClassificationRequest", lambda: decode(request), lambda: plain_decode(request)),
        ("decode JSON examples", lambda: decode_json_examples(body), lambda: plain_decode_json(body)),
        (
            f"encode {CLASSES} classes, ClassificationResult",
            lambda: encode_classifications(labels, scores),
            lambda: plain_encode(labels, scores),
        ),
        (
            f"encode {CLASSES} classes, JSON",
            lambda: json_classifications(labels, scores),
            lambda: plain_encode_json(labels, scores),
        ),
    ]


def cost(act: Callable[[], object]) -> float:
    """Return the microseconds per call."""
    timer = timeit.Timer(act)
    calls = max(1, round(ROUND_S / max(timer.timeit(1), 1e-7)))
    return min(timer.repeat(ROUNDS, calls)) / calls * 1e6


def features(index: int) -> Features:
    """Return ten floats, five integers, a string, and an embedding of 64 floats."""
    return {
        **{f"float{number}": number + index / 7 for number in range(10)},
        **{f"integer{number}": number * index for number in range(5)},
        "text": "hello world",
        "embedding": [index / 3 + number for number in range(64)],
    }


def make_example(row: Features) -> Example:
    """Convert the row to an Example through messages."""
    example = Example()
    for name, content in row.items():
        feature = example.features.feature[name]
        for value in content if isinstance(content, list) else [content]:
            if isinstance(value, float):
                feature.float_list.value.append(value)
            elif isinstance(value, int):
                feature.int64_list.value.append(value)
            else:
                feature.bytes_list.value.append(value.encode())
    return example


def request_bytes(rows: list[Features]) -> bytes:
    """Return a serialized ClassificationRequest."""
    examples = input_pb2.ExampleList(examples=[make_example(row) for row in rows])
    request = classification_pb2.ClassificationRequest(
        model_spec={"name": "m"}, input=input_pb2.Input(example_list=examples)
    )
    return bytes(request.SerializeToString())


def decode(body: bytes) -> object:
    """Decode like the gRPC front-end."""
    return parse_example_request(body, "ClassificationRequest").examples()


def plain_decode(body: bytes) -> object:
    """Parse every Example, and serialize it for the model."""
    request = classification_pb2.ClassificationRequest.FromString(body)
    return example_array([example.SerializeToString() for example in request.input.example_list.examples])


def plain_decode_json(body: bytes) -> object:
    """Decode a JSON body through messages."""
    return example_array([make_example(row).SerializeToString() for row in json.loads(body)["examples"]])


def plain_encode(labels: Any, scores: Any) -> bytes:  # noqa: ANN401 (arrays)
    """Encode the result through messages."""
    result = classification_pb2.ClassificationResult()
    for names, values in zip(labels, scores, strict=True):
        classes = result.classifications.add().classes
        for name, value in zip(names, values, strict=True):
            classes.add(label=name.decode(), score=value)
    return bytes(result.SerializeToString())


def plain_encode_json(labels: Any, scores: Any) -> str:  # noqa: ANN401 (arrays)
    """Encode the result as JSON through lists."""
    rows = [
        [[name.decode(), float(value)] for name, value in zip(names, values, strict=True)]
        for names, values in zip(labels, scores, strict=True)
    ]
    return json.dumps({"results": rows})
