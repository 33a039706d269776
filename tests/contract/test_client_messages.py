"""The client's messages against the official ones: the same on the wire, and in one process with them."""

import subprocess
import sys
from typing import Any, TypeAlias

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tensorflow.core.framework import tensor_pb2, tensor_shape_pb2, types_pb2
from tensorflow.core.protobuf import error_codes_pb2, meta_graph_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_management_pb2,
    model_pb2,
    predict_pb2,
    status_pb2,
)
from tensorflow_serving.config import (
    file_system_storage_path_source_pb2,
    log_collector_config_pb2,
    logging_config_pb2,
    model_server_config_pb2,
)

from tpuserve_client import dtypes, tensor
from tpuserve_client._proto import serving_pb2
from tpuserve_client.dtypes import STRING, Array
from tpuserve_formats.messages._proto import batching_parameters_pb2
from tpuserve_formats.messages.model_server_config import BATCHING_PARAMETERS, BATCHING_PARAMETERS_NUMBER

MessageDescriptor: TypeAlias = Any  # protobuf's stubs give it one of two unrelated types

OFFICIAL: dict[str, type[Message]] = {
    "TensorShapeProto": tensor_shape_pb2.TensorShapeProto,
    "TensorProto": tensor_pb2.TensorProto,
    "TensorInfo": meta_graph_pb2.TensorInfo,
    "SignatureDef": meta_graph_pb2.SignatureDef,
    "ModelSpec": model_pb2.ModelSpec,
    "PredictRequest": predict_pb2.PredictRequest,
    "PredictResponse": predict_pb2.PredictResponse,
    "SignatureDefMap": get_model_metadata_pb2.SignatureDefMap,
    "GetModelMetadataRequest": get_model_metadata_pb2.GetModelMetadataRequest,
    "GetModelMetadataResponse": get_model_metadata_pb2.GetModelMetadataResponse,
    "StatusProto": status_pb2.StatusProto,
    "GetModelStatusRequest": get_model_status_pb2.GetModelStatusRequest,
    "ModelVersionStatus": get_model_status_pb2.ModelVersionStatus,
    "GetModelStatusResponse": get_model_status_pb2.GetModelStatusResponse,
    "FileSystemStoragePathSourceConfig": file_system_storage_path_source_pb2.FileSystemStoragePathSourceConfig,
    "LogCollectorConfig": log_collector_config_pb2.LogCollectorConfig,
    "SamplingConfig": logging_config_pb2.SamplingConfig,
    "LoggingConfig": logging_config_pb2.LoggingConfig,
    "ModelConfig": model_server_config_pb2.ModelConfig,
    "ModelConfigList": model_server_config_pb2.ModelConfigList,
    "ModelServerConfig": model_server_config_pb2.ModelServerConfig,
    "BatchingParameters": batching_parameters_pb2.BatchingParameters,
    "ReloadConfigRequest": model_management_pb2.ReloadConfigRequest,
    "ReloadConfigResponse": model_management_pb2.ReloadConfigResponse,
    "HealthCheckRequest": health_pb2.HealthCheckRequest,
    "HealthCheckResponse": health_pb2.HealthCheckResponse,
}

# Every dtype the client sends, by TensorFlow's own table.
_NUMBER_NAMES = (
    *("float32", "float64", "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn", "complex64", "complex128", "bool"),
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
)
NUMBERS = [np.dtype(tf.as_dtype(name).as_numpy_dtype) for name in _NUMBER_NAMES]


def arrays(dtype: np.dtype[Any]) -> st.SearchStrategy[Array]:
    """Arrays of any shape, empty and scalar among them, with any bits."""
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
    """The bits of an array, for comparing what may hold NaN."""
    return repr(array.tolist()).encode() if array.dtype == STRING else array.tobytes()


def is_packed_as_bytes(ours: FieldDescriptor, theirs: FieldDescriptor) -> bool:
    """The client's one liberty: packed numbers declared as the bytes that they are on the wire."""
    return ours.type == FieldDescriptor.TYPE_BYTES and ours.is_repeated and theirs.is_packed


def shape_of(field: FieldDescriptor) -> tuple[object, ...]:
    return field.name, field.is_repeated, field.type, field.containing_oneof and field.containing_oneof.name


def check_message(ours: MessageDescriptor, theirs: MessageDescriptor) -> None:
    for field in ours.fields:
        if field.number == BATCHING_PARAMETERS_NUMBER and ours.name == "ModelConfig":
            assert field.name == BATCHING_PARAMETERS  # tpuserve's own field of this message
            continue
        official = theirs.fields_by_number[field.number]
        if is_packed_as_bytes(field, official):
            assert field.name == official.name
            continue
        assert shape_of(field) == shape_of(official)
        if field.enum_type is not None and official.enum_type is not None:
            check_enum(field.enum_type, official.enum_type)
        if field.message_type is None or official.message_type is None:
            continue
        if field.message_type.containing_type is ours:  # nested, map entries too
            check_message(field.message_type, official.message_type)


def check_enum(ours: EnumDescriptor, theirs: EnumDescriptor) -> None:
    # Names nested in a message may carry a prefix, for "unknown" would clash: numbers are what is on the wire.
    assert set(ours.values_by_number) <= set(theirs.values_by_number)
    for number, value in ours.values_by_number.items():
        assert value.name.endswith(theirs.values_by_number[number].name)


def test_every_message_of_the_client_is_held_against_an_official_one() -> None:
    assert set(serving_pb2.DESCRIPTOR.message_types_by_name) == set(OFFICIAL)


@pytest.mark.parametrize("name", sorted(OFFICIAL))
def test_fields_have_the_official_numbers_names_and_types(name: str) -> None:
    check_message(serving_pb2.DESCRIPTOR.message_types_by_name[name], OFFICIAL[name].DESCRIPTOR)


def test_enums_have_the_official_numbers() -> None:
    enums = serving_pb2.DESCRIPTOR.enum_types_by_name
    check_enum(enums["DataType"], types_pb2.DataType.DESCRIPTOR)
    check_enum(enums["Code"], error_codes_pb2.Code.DESCRIPTOR)
    check_enum(enums["ModelType"], model_server_config_pb2.ModelType.DESCRIPTOR)


@pytest.mark.parametrize("first", ["tensorflow", "tpuserve_client"])
def test_both_sets_of_messages_live_in_one_process_in_either_order(first: str) -> None:
    # tensorflow's messages without tensorflow: a bare module with its path spares the seconds that it takes to import.
    bare = (
        "import importlib.util, sys, types; bare = types.ModuleType('tensorflow'); "
        "bare.__path__ = list(importlib.util.find_spec('tensorflow').submodule_search_locations); "
        "sys.modules['tensorflow'] = bare"
    )
    theirs = "from tensorflow_serving.apis import predict_pb2; from grpc_health.v1 import health_pb2"
    ours = "from tpuserve_client._proto import serving_pb2"
    imports = [theirs, ours] if first == "tensorflow" else [ours, theirs]
    check = "assert predict_pb2.PredictRequest.FromString(serving_pb2.PredictRequest().SerializeToString()) is not None"
    subprocess.run([sys.executable, "-c", "; ".join([bare, *imports, check])], check=True)


@given(any_array)
def test_tensor_is_read_by_tensorflow_as_it_was(array: Array) -> None:
    official = tensor_pb2.TensorProto.FromString(tensor.to_proto(array).SerializeToString())
    read = tf.make_ndarray(official)
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    assert same_bytes(read) == same_bytes(array)


@given(any_array)
def test_tensor_that_tensorflow_made_is_read_as_it_was(array: Array) -> None:
    official = tf.make_tensor_proto(array, dtype=tf.as_dtype(dtypes.to_wire(array.dtype)), shape=array.shape)
    read = tensor.from_proto(serving_pb2.TensorProto.FromString(official.SerializeToString()))
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    # Not the array itself: of a single number TensorFlow makes a Python one, which quietens a signalling NaN.
    assert same_bytes(read) == same_bytes(tf.make_ndarray(official))


def typed(array: Array) -> tensor_pb2.TensorProto:
    """The official message with every value in its typed field, as TensorFlow Serving answers."""
    official = tensor_pb2.TensorProto(
        dtype=dtypes.to_wire(array.dtype), tensor_shape=tf.TensorShape(array.shape).as_proto()
    )
    flat = array.reshape(-1)
    match array.dtype.name:
        case "object":
            official.string_val.extend(flat.tolist())
        case "float16" | "bfloat16":
            official.half_val.extend(flat.view(np.uint16).tolist())
        case "float8_e5m2" | "float8_e4m3fn":
            official.float8_val = flat.tobytes()
        case "complex64":
            official.scomplex_val.extend(flat.view(np.float32).tolist())
        case "complex128":
            official.dcomplex_val.extend(flat.view(np.float64).tolist())
        case "float32" | "float64" | "bool" | "int64" | "uint32" | "uint64" as name:
            field = {"float32": "float", "float64": "double"}.get(name, name)
            getattr(official, f"{field}_val").extend(flat.tolist())
        case _:
            official.int_val.extend(flat.tolist())
    return official


@given(any_array)
@example(np.array([0x7F81], np.uint16).view(tf.bfloat16.as_numpy_dtype))  # a signalling NaN
def test_typed_fields_are_read_as_they_were(array: Array) -> None:
    read = tensor.from_proto(serving_pb2.TensorProto.FromString(typed(array).SerializeToString()))
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    if array.dtype.name.startswith(("bfloat", "float8")):
        # By their bits, as they are sent: numpy tells NaN from NaN in dtypes that are not its own, and warns of a
        # signalling NaN that is cast to one of its own.
        assert same_bytes(read) == same_bytes(array)
    else:
        np.testing.assert_array_equal(read, array)


@given(any_array)
def test_message_that_went_through_the_client_is_unchanged(array: Array) -> None:
    response = predict_pb2.PredictResponse(model_spec=model_pb2.ModelSpec(name="m", signature_name="s"))
    response.model_spec.version.value = -(2**63)
    response.outputs["y"].CopyFrom(typed(array))
    response.outputs["z"].CopyFrom(tf.make_tensor_proto(1.5))
    sent = response.SerializeToString(deterministic=True)
    assert serving_pb2.PredictResponse.FromString(sent).SerializeToString(deterministic=True) == sent


@settings(max_examples=50)
@given(
    st.dictionaries(names, any_array, max_size=3),
    names,
    st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), names),
    names,
    st.lists(names, max_size=3),
)
def test_request_is_byte_equal_to_the_official_one(
    inputs: dict[str, Array], model: str, version: int | str | None, signature: str, output_filter: list[str]
) -> None:
    requests: list[Any] = []
    for request, content in (
        (predict_pb2.PredictRequest(), tensor_pb2.TensorProto),
        (serving_pb2.PredictRequest(), None),
    ):
        request.model_spec.name = model
        request.model_spec.signature_name = signature
        if isinstance(version, int):
            request.model_spec.version.value = version
        elif version is not None:
            request.model_spec.version_label = version
        request.output_filter.extend(output_filter)
        for name, array in inputs.items():
            request.inputs[name].CopyFrom(tensor.to_proto(array) if content is None else official_content(array))
        requests.append(request.SerializeToString(deterministic=True))
    assert requests[0] == requests[1]


def official_content(array: Array) -> tensor_pb2.TensorProto:
    """The official message as the client means to send it, without the client's code."""
    official = tensor_pb2.TensorProto(dtype=tf.as_dtype(array.dtype).as_datatype_enum)
    official.tensor_shape.CopyFrom(tf.TensorShape(array.shape).as_proto())
    if array.dtype == STRING:
        official.string_val.extend(array.reshape(-1).tolist())
    else:
        official.tensor_content = array.tobytes()
    return official


@pytest.mark.parametrize("number", sorted(serving_pb2.DESCRIPTOR.enum_types_by_name["DataType"].values_by_number))
def test_every_dtype_is_tensorflows(number: int) -> None:
    dtype = dtypes.from_wire(number)
    if dtype is None:
        assert number in {types_pb2.DT_INVALID, types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT}
        return
    theirs = np.dtype(tf.as_dtype(number).as_numpy_dtype)
    # tensorflow keeps quantized values in structured arrays of one field.
    assert dtype == (theirs[0] if theirs.names else theirs)
    assert dtypes.from_name(types_pb2.DataType.Name(number)) == dtype
