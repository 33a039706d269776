"""Tests for the formats against the official ones: messages, data types, tensors and TFRecord.

TensorFlow runs in the same process.
"""

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tensorflow.core.framework import tensor_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import get_model_metadata_pb2, model_service_pb2, predict_pb2, prediction_service_pb2

from tpuserve_client.exchange import PredictCall
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec
from tpuserve_formats.dtypes import BY_DTYPE, BY_NUMBER, STRING, WITH_QUANTIZED, Array, DType, WireType, type_name
from tpuserve_formats.errors import FormatError
from tpuserve_formats.messages import generate, official
from tpuserve_formats.messages.official import TensorProto
from tpuserve_formats.messages.pool import official_pool
from tpuserve_formats.tensor_proto import decode_tensor, encode_tensor
from tpuserve_formats.tf_record import FRAME_BYTES, CutShort, framed, read_records

STUB = ast.parse(Path(official.__file__).with_suffix(".pyi").read_text())
# The imports of `official.pyi`: our name, the official module, the official name.
NAMED = [
    (alias.asname, str(line.module), alias.name)
    for line in STUB.body
    if isinstance(line, ast.ImportFrom) and str(line.module).endswith("_pb2")
    for alias in line.names
]
DECLARED = {
    line.target.id for line in STUB.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
}


# Messages.


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


@pytest.mark.parametrize("first", ["tensorflow", "tpuserve_formats"])
def test_both_sets_of_messages_live_in_one_process_in_either_order(first: str) -> None:
    # A bare `tensorflow` module with the package's path: its messages import without the seconds of TensorFlow itself.
    bare = (
        "import importlib.util, sys, types; bare = types.ModuleType('tensorflow'); "
        "bare.__path__ = list(importlib.util.find_spec('tensorflow').submodule_search_locations); "
        "sys.modules['tensorflow'] = bare"
    )
    theirs = "from tensorflow_serving.apis import predict_pb2; from grpc_health.v1 import health_pb2"
    ours = (
        "from tpuserve_formats.messages import official, model_server_config; "
        "[getattr(official, name) for name in official.NAMES]"
    )
    imports = [theirs, ours] if first == "tensorflow" else [ours, theirs]
    check = "assert predict_pb2.PredictRequest.FromString(official.PredictRequest().SerializeToString()) is not None"
    subprocess.run([sys.executable, "-c", "; ".join([bare, *imports, check])], check=True)


# Data types.


@pytest.mark.parametrize("wire_type", WITH_QUANTIZED.values(), ids=lambda wire_type: wire_type.name)
def test_number_name_dtype_and_field_are_tensorflows(wire_type: WireType) -> None:
    theirs = tf.as_dtype(wire_type.number)
    assert theirs.name in (wire_type.name, str(wire_type.dtype), "string")
    dtype = np.dtype(theirs.as_numpy_dtype)
    # TensorFlow stores quantized values in structured arrays with one field.
    assert (dtype[0] if dtype.names else dtype) == wire_type.dtype
    assert wire_type.field in tensor_pb2.TensorProto.DESCRIPTOR.fields_by_name
    assert types_pb2.DataType.Value(wire_type.enum_name) == wire_type.number
    assert wire_type.number not in BY_NUMBER or BY_DTYPE[wire_type.dtype] is wire_type


def test_every_type_of_tensorflow_that_numpy_has_is_there() -> None:
    numbers = {number for number in types_pb2.DataType.values() if 0 < number < 100}
    left_out = {types_pb2.DataType.Name(number) for number in numbers - WITH_QUANTIZED.keys()}
    # Clients cannot send resource and variant values, and no signature exposes the sub-byte types.
    assert {name for name in left_out if not name.startswith(("DT_INT", "DT_UINT", "DT_FLOAT4"))} == {
        "DT_RESOURCE",
        "DT_VARIANT",
    }


def test_names_are_tensorflows_and_numpys_for_others() -> None:
    assert type_name(np.dtype(np.float16)) == "half"
    assert type_name(np.dtype(ml_dtypes.bfloat16)) == "bfloat16"
    assert type_name(np.dtype("datetime64[s]")) == "datetime64[s]"


# Tensors. TensorFlow's Python functions reject some float8 types.

NUMBERS = [dtype for dtype in BY_DTYPE if dtype != STRING and "fnuz" not in dtype.name]


def arrays(dtype: DType) -> st.SearchStrategy[Array]:
    """Return a strategy for arrays of any shape and any bits, including empty arrays and scalars."""
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
    if dtype == STRING:
        return hnp.arrays(STRING, shapes, elements=st.binary(max_size=20))
    if dtype.kind == "b":
        return hnp.arrays(dtype, shapes)
    octets = shapes.flatmap(lambda shape: hnp.arrays(np.uint8, (*shape, dtype.itemsize)))
    return octets.map(lambda raw: np.ascontiguousarray(raw).view(dtype).reshape(raw.shape[:-1]))


any_array = st.sampled_from([*NUMBERS, STRING]).flatmap(arrays)
names = st.text(max_size=8)


def same_bytes(array: Array) -> bytes:
    """Return the bits of an array, to compare values that may be NaN."""
    return repr(array.tolist()).encode() if array.dtype == STRING else array.tobytes()


@given(any_array)
@settings(deadline=None)
def test_tensor_is_read_by_tensorflow_as_it_was(array: Array) -> None:
    read = tf.make_ndarray(tensor_pb2.TensorProto.FromString(encode_tensor(array, as_content=True)))
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    assert same_bytes(read) == same_bytes(array)


@given(any_array)
@settings(deadline=None)
def test_tensor_that_tensorflow_made_is_read_as_it_was(array: Array) -> None:
    made = tf.make_tensor_proto(array, dtype=tf.as_dtype(BY_DTYPE[array.dtype].number), shape=array.shape)
    read = decode_tensor(TensorProto.FromString(made.SerializeToString()))
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    # Compare with TensorFlow's array, not with `array`: TensorFlow converts a scalar to a Python number, which quietens
    # a signalling NaN.
    assert same_bytes(read) == same_bytes(tf.make_ndarray(made))


def typed(array: Array) -> tensor_pb2.TensorProto:
    """Return the official message with every value in its typed field, like TensorFlow Serving's responses."""
    wire_type = BY_DTYPE[array.dtype]
    made = tensor_pb2.TensorProto(dtype=wire_type.number, tensor_shape=tf.TensorShape(array.shape).as_proto())
    flat = array.reshape(-1)
    if wire_type.field == "float8_val":
        made.float8_val = flat.tobytes()
        return made
    bits = {"half_val": np.uint16, "scomplex_val": np.float32, "dcomplex_val": np.float64}.get(wire_type.field)
    getattr(made, wire_type.field).extend((flat if bits is None else flat.view(bits)).tolist())
    return made


@given(any_array)
@example(np.array([0x7F81], np.uint16).view(ml_dtypes.bfloat16))  # a signalling NaN
@settings(deadline=None)
def test_typed_fields_are_read_as_they_were(array: Array) -> None:
    read = decode_tensor(TensorProto.FromString(typed(array).SerializeToString()))
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    if array.dtype.name.startswith(("bfloat", "float8")):
        # Compare bits: for dtypes that numpy does not define, numpy distinguishes NaNs. Casts of a signalling NaN warn.
        assert same_bytes(read) == same_bytes(array)
    else:
        np.testing.assert_array_equal(read, array)


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(names, any_array, max_size=3),
    names,
    st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), names),
    names,
    st.lists(names, max_size=3),
)
def test_request_of_the_client_is_the_official_one(
    inputs: dict[str, Array], model: str, version: int | str | None, signature: str, output_filter: list[str]
) -> None:
    expected = predict_pb2.PredictRequest(output_filter=output_filter)
    expected.model_spec.name, expected.model_spec.signature_name = model, signature
    spec = ModelSpec(model)
    if isinstance(version, int):
        spec = ModelSpec(model, version=version)
        expected.model_spec.version.value = version
    elif version is not None:
        spec = ModelSpec(model, label=version)
        expected.model_spec.version_label = version
    for name, array in inputs.items():
        expected.inputs[name].CopyFrom(official_content(array))
    body = GrpcWire().predict(PredictCall(spec, inputs, signature, tuple(output_filter))).body
    ordered = predict_pb2.PredictRequest.FromString(body).SerializeToString(deterministic=True)
    assert ordered == expected.SerializeToString(deterministic=True)
    assert len(body) == len(ordered)


def official_content(array: Array) -> tensor_pb2.TensorProto:
    """Return the official message that the client should send, built without our code."""
    made = tensor_pb2.TensorProto(dtype=tf.as_dtype(array.dtype).as_datatype_enum)
    made.tensor_shape.CopyFrom(tf.TensorShape(array.shape).as_proto())
    if array.dtype == STRING:
        made.string_val.extend(array.reshape(-1).tolist())
    else:
        made.tensor_content = array.tobytes()
    return made


# TFRecord.

RECORDS = [b"first", b"", bytes(range(256)) * 300]


def read_file(path: Path, *, refuse_rest: bool = False) -> list[bytes]:
    with path.open("rb") as file:
        return list(read_records(file, refuse_rest=refuse_rest))


def tensorflow_reads(path: Path) -> list[bytes]:
    return [record.numpy() for record in tf.data.TFRecordDataset(str(path))]


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=600), max_size=5))
def test_tensorflow_reads_what_is_written_and_writes_the_same(tmp_path: Path, records: list[bytes]) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_bytes(b"".join(framed(record) for record in records))
    with tf.io.TFRecordWriter(str(theirs)) as writer:
        for record in records:
            writer.write(record)
    assert ours.read_bytes() == theirs.read_bytes()
    assert tensorflow_reads(ours) == records
    assert read_file(theirs) == read_file(theirs, refuse_rest=True) == records
    assert theirs.stat().st_size == sum(len(record) + FRAME_BYTES for record in records)


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(lambda content: content[:-1], id="its last checksum is cut short"),
        pytest.param(lambda content: content[: -FRAME_BYTES // 2], id="its last record is cut short"),
        pytest.param(lambda content: content + framed(b"x")[:12], id="a length without a record"),
        pytest.param(lambda content: b"\x06" + content[1:], id="a length is another"),
        pytest.param(lambda content: content.replace(b"first", b"fir5t"), id="a record is another"),
        pytest.param(lambda content: framed(b"x")[:12].replace(b"\x01", b"\xff"), id="a length without its checksum"),
        pytest.param(lambda content: b"hello, this is some text without a frame", id="some text"),
    ],
)
def test_what_tensorflow_refuses_is_refused(tmp_path: Path, damaged: object) -> None:
    assert callable(damaged)
    path = tmp_path / "records"
    path.write_bytes(damaged(b"".join(framed(record) for record in RECORDS)))
    with pytest.raises(tf.errors.DataLossError):
        tensorflow_reads(path)
    with pytest.raises(FormatError, match=r"checksum|truncated"):
        read_file(path)


@pytest.mark.parametrize("size", [1, 11])
def test_a_file_may_end_within_a_length_as_for_tensorflow(tmp_path: Path, size: int) -> None:
    path = tmp_path / "records"
    path.write_bytes(framed(b"first") + framed(b"second")[:size])
    assert read_file(path) == tensorflow_reads(path) == [b"first"]
    with pytest.raises(CutShort):
        read_file(path, refuse_rest=True)


def test_whole_records_before_the_damage_are_read(tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_bytes(b"".join(framed(record) for record in RECORDS)[:-1])
    with path.open("rb") as file:
        records = read_records(file)
        assert [next(records) for _ in RECORDS[:-1]] == RECORDS[:-1]
        with pytest.raises(CutShort, match="truncated"):
            next(records)
