"""Tests that texts of SavedModels are parsed as TensorFlow's loader parses them."""

from pathlib import Path

import pytest
from google.protobuf import text_format
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from tests.support.saved_models import as_text, save_mlp
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.executors.tensorflow.pinned_saved_model import parse_text


def parse(text: str) -> SavedModel:
    return SavedModel.FromString(parse_text(text.encode()))


def test_a_text_has_the_content_of_the_binary_file(tmp_path: Path) -> None:
    path = save_mlp(tmp_path / "1")
    model = SavedModel.FromString((path / "saved_model.pb").read_bytes())
    assert parse((as_text(path) / "saved_model.pbtxt").read_text()) == model


@pytest.mark.parametrize("count", [0, 1, 3])
def test_every_graph_is_there(count: int) -> None:
    text = "saved_model_schema_version: -2 " + "meta_graphs { } " * count
    assert parse(text) == text_format.Parse(text, SavedModel())


@pytest.mark.parametrize("escape", [r"\X66", r"\x66", r"\146", "f", r"\u0066"])
def test_escapes_are_those_of_tensorflow(escape: str) -> None:
    model = parse(f'meta_graphs {{ meta_info_def {{ tags: "{escape}ile" }} }}')
    assert model.meta_graphs[0].meta_info_def.tags == ["file"]


@pytest.mark.parametrize("text", ["meta_graphs {", "unknown: 1", 'meta_graphs { meta_info_def { tags: "\\q" } }'])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^saved_model\.pbtxt is not a SavedModel$"):
        parse_text(text.encode())
