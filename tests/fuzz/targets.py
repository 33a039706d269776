"""The table of targets: parsers by name, each a module of tests/fuzz/parsers with a folder of tests/fuzz/corpus.

Import no parser here: the fuzzer instruments modules when it imports them.
"""

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tests.fuzz.target import Target

CORPUS: Final = Path(__file__).with_name("corpus")
# What each target reads.
PARSERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "tensor_proto": "TensorProto, against TensorFlow's C++",
        "predict_request": "PredictRequest, against the official message",
        "example_request": "Classify, Regress, MultiInference, against the official messages",
        "predict_json": "REST predict bodies, every path against every other and Python's json",
        "examples_json": "REST classify and regress bodies, in one step and in pieces",
        "infer_json": "Open Inference Protocol, JSON and binary data, every path against every other",
        "infer_proto": "ModelInferRequest, views against protobuf's parser",
        "layouts": "layouts of requests, against the parsers",
        "raw_tensor": "binary tensors, against a slow reader",
        "tf_record": "TFRecord files, against TensorFlow's reader",
        "prediction_log": "recorded requests of warm-up files, request logs and load tests",
        "text_protos": "configuration files in protobuf's text format",
        "manifests": "manifests of versions",
        "signature_files": "signatures of versions, in both forms",
        "weights_file": "weights in safetensors, against its own library",
        "request_headers": "headers: timeouts, priority, trace context, codings, lengths",
        "routes": "request targets and paths",
        "grpc_frames": "gRPC frames, whole against chunks",
        "control_requests": "reloads, repository, settings, shared memory",
        "client_replies": "the client's readers of replies",
    }
)


def load(name: str) -> Target:
    """Import a target."""
    target: Target = importlib.import_module(f"tests.fuzz.parsers.{name}").TARGET
    return target


def entries(name: str) -> Iterator[Path]:
    """Yield the corpus files of a target in order."""
    yield from sorted(path for path in (CORPUS / name).iterdir() if path.is_file())
