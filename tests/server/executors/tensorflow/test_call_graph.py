"""Tests for the refusal of graphs with which TensorFlow would end the process or fill the memory."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from tests.support.saved_models import save_half_plus_two, save_mlp
from tpuserve_formats.safety.graph import read_graphs
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.servable import VersionFiles
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.executors.tensorflow import TensorFlowOptions
from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor
from tpuserve_server.executors.tensorflow.executor import check_calls as check_calls_of

LEVELS = 40


def check_calls(saved_model: bytes) -> None:
    check_calls_of(read_graphs(saved_model))


def make_model(functions: Mapping[str, Sequence[str]], op: str = "PartitionedCall") -> SavedModel:
    """Return a model whose functions refer to these names, once for each."""
    model = SavedModel(saved_model_schema_version=1)
    graph = model.meta_graphs.add().graph_def
    for name, called in functions.items():
        function = graph.library.function.add()
        function.signature.name = name
        for index, one in enumerate(called):
            node = function.node_def.add(name=f"call{index}", op=op)
            node.attr["Tin"].list.type.append(1)
            if op == "Case":
                node.attr["branches"].list.func.add(name=one)
            elif op == "If":
                node.attr["then_branch"].func.name = one
            else:
                node.attr["f"].func.name = one
    node = graph.node.add(name="y", op="PartitionedCall")
    node.attr["f"].func.name = next(iter(functions), "f")
    return model


def check(functions: Mapping[str, Sequence[str]], op: str = "PartitionedCall") -> None:
    check_calls(make_model(functions, op).SerializeToString())


@pytest.mark.parametrize("op", ["PartitionedCall", "If", "Case"])
@pytest.mark.parametrize(
    "functions", [{"f": ["f"]}, {"f": ["g"], "g": ["h"], "h": ["g"]}, {"f": ["g", "h"], "g": ["h"], "h": ["f"]}]
)
def test_a_function_that_calls_itself_is_refused(functions: Mapping[str, Sequence[str]], op: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^its function '[fgh]' calls itself, which TensorFlow cannot run$"):
        check(functions, op)


def test_a_function_that_is_called_as_an_operation_is_refused_too() -> None:
    model = make_model({"f": []})
    model.meta_graphs[0].graph_def.library.function[0].node_def.add(name="again", op="f")
    with pytest.raises(InvalidArgument, match="calls itself"):
        check_calls(model.SerializeToString())


def test_functions_that_double_at_each_level_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"call each other so often that the graph has more than 10\^12 nodes"):
        check({f"f{level}": [f"f{level + 1}"] * 2 for level in range(LEVELS)} | {f"f{LEVELS}": []})
    check({f"f{level}": [f"f{level + 1}"] * 2 for level in range(12)} | {"f12": []})


@pytest.mark.parametrize("order", [1, -1])
def test_calls_that_nest_too_deeply_are_refused(order: int) -> None:
    chain = {f"f{level}": [f"f{level + 1}"] for level in range(300)} | {"f300": []}
    with pytest.raises(InvalidArgument, match="nests more than 256 calls"):
        check(dict(list(chain.items())[::order]))


def test_several_calls_of_one_function_are_fine() -> None:
    check({"f": ["g", "g", "h"], "g": ["h", "absent"], "h": []})
    check({})


def test_unknown_fields_do_not_hide_a_function() -> None:
    model = make_model({"f": ["f"]})
    with pytest.raises(InvalidArgument, match="calls itself"):
        # A varint in field 1 twice, and 4 and 8 bytes in fields 15 and 14.
        check_calls(b"\x08\x01\x7d1234\x7112345678" + model.SerializeToString())


def test_large_constants_are_left_out_and_hide_no_function() -> None:
    model = make_model({"f": []})
    graph = model.meta_graphs[0].graph_def
    graph.node.add(name="large", op="Const").attr["value"].tensor.tensor_content = bytes(100_000)
    check_calls(model.SerializeToString())
    node = graph.library.function[0].node_def.add(name="call", op="PartitionedCall")
    node.attr["value"].tensor.tensor_content = bytes(100_000)
    node.attr["f"].func.name = "f"
    with pytest.raises(InvalidArgument, match="calls itself"):
        check_calls(model.SerializeToString())


def test_ordinary_models_pass(tmp_path: Path) -> None:
    for path in (save_mlp(tmp_path / "1"), save_half_plus_two(tmp_path / "2")):
        check_calls((path / "saved_model.pb").read_bytes())


def test_the_executor_refuses_such_a_model_and_loads_the_next(tmp_path: Path) -> None:
    executor = TensorFlowExecutor(TensorFlowOptions())
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "saved_model.pb").write_bytes(make_model({"f": ["f"]}).SerializeToString())
    with pytest.raises(InvalidArgument, match=r"^TensorFlow cannot load the SavedModel: its function 'f' calls itself"):
        executor.load(ServableId("bad", 1), VersionFiles(tmp_path / "bad"))
    executor.load(ServableId("m", 1), VersionFiles(save_half_plus_two(tmp_path / "1"))).close()
