"""The messages that are shipped are the official ones, and get on with TensorFlow's in one process."""

import ast
import importlib
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import get_model_metadata_pb2, model_service_pb2, prediction_service_pb2

from tpuserve_formats.messages import generate, official
from tpuserve_formats.messages.pool import official_pool

STUB = ast.parse(Path(official.__file__).with_suffix(".pyi").read_text())
# As `official.pyi` says it: our name, the official module, the name in it.
NAMED = [
    (alias.asname, str(line.module), alias.name)
    for line in STUB.body
    if isinstance(line, ast.ImportFrom) and str(line.module).endswith("_pb2")
    for alias in line.names
]
DECLARED = {
    line.target.id for line in STUB.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
}


def test_shipped_descriptors_are_those_of_the_installed_packages() -> None:
    assert generate.DESCRIPTORS.read_bytes() == generate.official_files()


def test_every_file_says_what_the_official_one_says() -> None:
    shipped = FileDescriptorSet.FromString(generate.DESCRIPTORS.read_bytes())
    for file in shipped.file:
        found: Any = official_pool().FindFileByName(file.name)
        assert found.serialized_pb == file.SerializeToString()


@pytest.mark.parametrize(("name", "module", "official_name"), NAMED)
def test_a_name_stands_for_the_message_that_its_type_says(name: str | None, module: str, official_name: str) -> None:
    ours = getattr(official, str(name)).DESCRIPTOR
    theirs = getattr(importlib.import_module(module), official_name).DESCRIPTOR
    assert (ours.full_name, ours.file.serialized_pb) == (theirs.full_name, theirs.file.serialized_pb)


def test_every_name_has_a_type() -> None:
    assert {str(name) for name, _, _ in NAMED} | DECLARED - {"NAMES"} == official.NAMES


@pytest.mark.parametrize(
    ("service", "file"),
    [(official.PREDICTION_SERVICE, prediction_service_pb2), (official.MODEL_SERVICE, model_service_pb2)],
    ids=["prediction", "model"],
)
def test_services_are_the_official_ones(service: Any, file: Any) -> None:  # noqa: ANN401 (descriptors and modules)
    theirs = file.DESCRIPTOR.services_by_name[service.name]
    assert [method.name for method in service.methods] == [method.name for method in theirs.methods]


def test_what_an_official_client_packs_is_unpacked_and_the_other_way_round() -> None:
    ours, theirs = official.GetModelMetadataResponse(), get_model_metadata_pb2.GetModelMetadataResponse()
    signatures = {"inputs": {"x": {"dtype": 1}}, "method_name": "tensorflow/serving/predict"}
    for response, signature_map, signature in (
        (ours, official.SignatureDefMap, official.SignatureDef),
        (theirs, get_model_metadata_pb2.SignatureDefMap, meta_graph_pb2.SignatureDef),
    ):
        response.model_spec.version.value = 7
        response.metadata["signature_def"].Pack(
            signature_map(signature_def={"serving_default": signature(**signatures)})
        )
    assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)
    read = official.SignatureDefMap()
    assert theirs.__class__.FromString(ours.SerializeToString()) == theirs
    assert (
        official.GetModelMetadataResponse.FromString(theirs.SerializeToString()).metadata["signature_def"].Unpack(read)
    )
    assert (
        read.signature_def["serving_default"].inputs["x"].dtype == official.DATA_TYPE.values_by_name["DT_FLOAT"].number
    )
