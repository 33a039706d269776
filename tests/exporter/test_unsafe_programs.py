"""Tests of the check of `.pt2` files, without PyTorch. tests/exporter/pytorch has the tests with files of PyTorch."""

import copy
import io
import json
import warnings
import zipfile
from typing import Any

import pytest

from tpuserve_exporter.sources.torch.program_content import unsafe_parts

SPEC = """[1, {"type": "builtins.tuple", "context": "null", "children_spec": [
    {"type": "builtins.tuple", "context": "null", "children_spec": [{"type": null, "context": null}]},
    {"type": "builtins.dict", "context": "[\\"image-1\\", \\"mask\\"]", "children_spec": []}]}]"""
DEFAULTDICT = """[1, {"type": "collections.defaultdict", "children_spec": [], "context":
    "{\\"default_factory_module\\": \\"%s\\", \\"default_factory_name\\": \\"list\\", \\"dict_context\\": []}"}]"""


def program() -> dict[str, Any]:
    """Return a program as torch.export.save writes it: one linear layer with a free batch size."""
    node = {
        "target": "torch.ops.aten.linear.default",
        "inputs": [{"name": "input", "arg": {"as_tensor": {"name": "features"}}, "kind": 1}],
        "outputs": [{"as_tensor": {"name": "linear"}}],
        "metadata": {"stack_trace": '  File "model.py", line 1, in forward\n', "nn_module_stack": ",,torch.nn.Linear"},
    }
    sizes = [{"as_expr": {"expr_str": "s0", "hint": {"as_int": 2}}}, {"as_int": 3}]
    arguments = [
        {"parameter": {"arg": {"name": "p_layers_0_weight"}, "parameter_name": "layers.0.weight"}},
        {"user_input": {"arg": {"as_tensor": {"name": "features"}}}},
    ]
    signature = {"inputs": [], "outputs": [], "in_spec": SPEC, "out_spec": SPEC, "forward_arg_names": ["features"]}
    return {
        "graph_module": {
            "graph": {
                "inputs": [{"as_tensor": {"name": "p_layers_0_weight"}}, {"as_tensor": {"name": "features"}}],
                "nodes": [node],
                "tensor_values": {"features": {"sizes": sizes}, "name": {"sizes": sizes}},
            },
            "signature": {"input_specs": arguments, "output_specs": []},
            "module_call_graph": [{"fqn": "", "signature": signature}],
        },
        "guards_code": ["L['features'].size()[0] <= 1024", "L['x'].size()[0] % 2 == 0 and 2 <= max(3, L['x'].dim())"],
    }


def found(document: dict[str, Any], more: dict[str, bytes] | None = None) -> list[str]:
    config = {"config": {"layers.0.weight": {"path_name": "weight_0", "is_param": True, "use_pickle": False}}}
    parts = {
        "models/models/model.json": json.dumps(document).encode(),
        "models/data/weights/model_weights_config.json": json.dumps(config).encode(),
        "models/data/weights/weight_0": b"\0" * 8,
    }
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a name twice
        for name, part in [*parts.items(), *(more or {}).items()]:
            archive.writestr(name, part)
    with zipfile.ZipFile(content) as archive:
        return list(unsafe_parts(archive))


def test_a_plain_program_passes() -> None:
    assert found(program()) == []


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.aten.add.Tensor",
        "torch.ops.aten.embedding_bag.padding_idx",
        "torch.ops.torchvision.nms.default",
        "torch.ops.higher_order.cond",
        "_operator.getitem",
        "_operator.floordiv",
        "math.trunc",
        "torch.sym_max",
        "torch._sym_sqrt",
    ],
)
def test_operations_on_tensors_and_sizes_pass(target: str) -> None:
    document = program()
    document["graph_module"]["graph"]["nodes"][0]["target"] = target
    assert found(document) == []


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.aten.from_file.default",
        "torch.ops.aten.from_file.out",
        "torch.ops.aten.save.default",
        "torch.ops.load_library.__call__",
        "torch.ops.c10d.send.default",
        "torch.ops.mylib.run.default",
        "torch.ops.higher_order.aoti_call_delegate",
        "torch.ops.higher_order.call_torchbind",
        "torch.os.mkdir",
        "_operator.__call__",
        "_operator.call",
        "_operator.methodcaller",
        "math.__loader__",
    ],
)
def test_other_calls_are_named(target: str) -> None:
    document = program()
    document["graph_module"]["graph"]["nodes"][0]["target"] = target
    assert found(document) == [f"a call of {target}"]
    document = program()
    document["graph_module"]["graph"]["nodes"][0]["inputs"][0]["arg"] = {"as_operator": target}
    assert found(document) == [f"a call of {target}"]


CODE = "x=__import__('os').mkdir('ran')"


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("graph", "inputs", 1, "as_tensor", "name"), CODE, "the name"),
        (("graph", "nodes", 0, "outputs", 0, "as_tensor", "name"), CODE, "the name"),
        (("graph", "nodes", 0, "name"), CODE, "the name"),
        (("graph", "tensor_values", "features", "sizes", 0, "as_expr", "expr_str"), CODE, "the expression"),
        (("signature", "input_specs", 0, "parameter", "parameter_name"), 'a", eval(b), "', "the name"),
        (("module_call_graph", 0, "signature", "forward_arg_names"), ["features", CODE], "the name"),
        (("module_call_graph", 0, "signature", "in_spec"), SPEC.replace("mask", "x=eval(y)"), "the structure"),
        (("module_call_graph", 0, "signature", "out_spec"), DEFAULTDICT % "antigravity", "the structure"),
        (("module_call_graph", 0, "signature", "out_spec"), "no JSON", "the structure"),
    ],
)
def test_code_in_names_and_expressions_is_named(path: tuple[str | int, ...], value: object, named: str) -> None:
    document = copy.deepcopy(program())
    place: Any = document["graph_module"]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert {" ".join(one.split(" ")[:2]) for one in found(document)} == {named}


def test_a_defaultdict_of_a_built_in_type_passes() -> None:
    document = program()
    document["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] = DEFAULTDICT % "builtins"
    assert found(document) == []


@pytest.mark.parametrize("guard", ["__import__('os')", "L['x'].__class__", "torch.load('x')", "(lambda: 1)()"])
def test_code_in_guards_is_named(guard: str) -> None:
    assert found(program() | {"guards_code": [guard]}) == [f"the guard {guard!r}"]


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("models/models/model.jsoN", b"{}", ["models/models/model.json, twice", "model.jsoN, an object"]),
        ("models/models/model2.txt", b"{}", ["model2.txt, an object"]),
        ("models/models/model.json", json.dumps(program()).encode(), ["models/models/model.json, twice"]),
        ("models/data/constants/opaque_obj_0", b"", ["opaque_obj_0, an object"]),
        ("models/data/constants/custom_obj_0", b"", ["custom_obj_0, an object"]),
        ("models/data/aotinductor/model/model.SO", b"", ["compiled code"]),
        ("models/x.json", b'{"config": {"x": {"path_name": "opaque_obj_0"}}}', ["the object 'opaque_obj_0'"]),
        ("models/x.json", b'{"config": {"x": {"use_pickle": true, "path_name": "tensor_0"}}}', ["tensor_0, a pickle"]),
    ],
)
def test_parts_that_torch_unpickles_or_mistakes_are_named(name: str, content: bytes, named: list[str]) -> None:
    assert found(program(), {name: content}) == named
