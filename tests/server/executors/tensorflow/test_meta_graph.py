import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from tests.support.saved_models import save_mlp
from tests.support.v1_models import set_default
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.executors.tensorflow.meta_graph import parse_signatures, read_signatures


def meta_graph(path: Path) -> meta_graph_pb2.MetaGraphDef:
    saved = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    return saved.meta_graphs[0]


def test_signatures_are_found_without_reading_the_graph(tmp_path: Path) -> None:
    written = meta_graph(save_mlp(tmp_path / "1"))
    expected = read_signatures(written)
    assert set(expected) == {"serving_default"}
    written.graph_def.node.add(name="large").attr["value"].tensor.tensor_content = bytes(10_000)
    serialized = written.SerializeToString()
    assert parse_signatures(serialized) == expected


@pytest.mark.parametrize(
    ("dtype", "why"),
    [
        (tf.resource.as_datatype_enum, "tensor 'handle' is a resource, which no message can carry"),
        (tf.variant.as_datatype_enum, "tensor 'handle' is a variant, which no message can carry"),
        (99, "tensor 'handle' has the unknown data type 99"),
    ],
)
@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_a_signature_with_a_tensor_that_no_message_carries_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, side: str, dtype: int, why: str
) -> None:
    written = meta_graph(save_mlp(tmp_path / "1"))
    other = written.signature_def["other"]
    other.CopyFrom(written.signature_def["serving_default"])
    getattr(other, side)["handle"].dtype = dtype
    assert set(read_signatures(written)) == {"serving_default"}
    assert f"Signature 'other' is not served: {why}" in caplog.text


def test_defaults_are_arrays(tmp_path: Path) -> None:
    path = set_default(save_mlp(tmp_path / "1"), "serving_default", x=np.ones((1, 64), np.float32), word=b"a")
    defaults = read_signatures(meta_graph(path))["serving_default"].defaults
    assert defaults["x"].shape == (1, 64)
    assert defaults["word"].item() == b"a"


def test_a_default_that_is_no_tensor_is_an_error() -> None:
    broken = meta_graph_pb2.MetaGraphDef()
    tensor = broken.signature_def["s"].defaults["x"]
    tensor.dtype = tf.float32.as_datatype_enum
    tensor.tensor_shape.dim.add(size=3)
    tensor.tensor_content = b"12345"
    with pytest.raises(InvalidArgument, match="tensor parsing error: x"):
        parse_signatures(broken.SerializeToString())


def test_a_tensor_that_no_protocol_carries_has_tensorflows_dtype() -> None:
    written = meta_graph_pb2.MetaGraphDef()
    written.signature_def["s"].inputs["x"].dtype = tf.qint8.as_datatype_enum
    (x,) = parse_signatures(written.SerializeToString())["s"].inputs.values()
    assert x.dtype == np.dtype(tf.qint8.as_numpy_dtype)


@pytest.mark.parametrize("damaged", [b"\x2a", b"\x2a\x05ab", b"\x80" * 12, b"\x0b\x01", b"\x0d\x01"])
def test_what_is_no_meta_graph_is_an_error(damaged: bytes) -> None:
    with pytest.raises(InvalidArgument, match="MetaGraphDef is damaged"):
        parse_signatures(damaged)


def test_ragged_tensors_are_those_that_the_exporter_names(tmp_path: Path) -> None:
    written = meta_graph(save_mlp(tmp_path / "1"))
    ((name, definition),) = [one for one in written.signature_def.items() if not one[0].startswith("__")]
    ((values, info),) = definition.inputs.items()
    definition.inputs["lengths"].CopyFrom(info)
    said = written.collection_def["tpuserve_row_splits"].bytes_list
    said.value.append(json.dumps({name: {"inputs": {values: ["lengths"]}, "outputs": {}}}).encode())
    signature = parse_signatures(written.SerializeToString())[name]
    assert signature.ragged_inputs == {values: ("lengths",)}
    assert not signature.is_batchable


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (b"{", "the collection tpuserve_row_splits is damaged. Export the version again"),
        (b'{"serving_default": {"inputs": {"x": ["nowhere"]}, "outputs": {}}}', "names nowhere"),
        (b'{"serving_default": {"inputs": {"x": [1, "nowhere"]}, "outputs": {}}}', "names 1, nowhere"),
        (b'{"serving_default": {"inputs": {"x": 1}, "outputs": {}}}', "is damaged. Export the version again"),
    ],
)
def test_row_splits_that_cannot_be_are_refused(tmp_path: Path, said: bytes, message: str) -> None:
    written = meta_graph(save_mlp(tmp_path / "1"))
    written.collection_def["tpuserve_row_splits"].bytes_list.value.append(said)
    with pytest.raises(InvalidArgument, match=message):
        parse_signatures(written.SerializeToString())
