"""Tests for names of TPUs, meshes and shard rules in the forms that users write."""

import pytest

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.options.tpu import FAMILIES, DeviceMesh, ShardRule, TpuTopology, find_axes, parse_topologies


@pytest.mark.parametrize(
    ("text", "name", "devices"),
    [
        ("v5e:2x2", "v5e:2x2", 4),
        ("V5E:1x1", "v5e:1x1", 1),
        ("v5litepod-4", "v5e:2x2", 4),
        ("v5litepod-1", "v5e:1x1", 1),
        ("v5e-8", "v5e:2x4", 8),
        ("v6e-8", "v6e:2x4", 8),
        ("v4-8", "v4:2x2x1", 8),
        ("v5p-8", "v5p:2x2x1", 4),
        ("v3-8", "v3:2x2", 8),
        ("tpu7x-8", "tpu7x:2x2x1", 8),
        ("tpu7x:2x2x1", "tpu7x:2x2x1", 8),
    ],
)
def test_topologies_go_by_the_compiler_s_names_and_the_machines(text: str, name: str, devices: int) -> None:
    found = TpuTopology.parse(text)
    assert (found.name, found.devices) == (name, devices)


@pytest.mark.parametrize("text", ["v5x:1x1", "v5e", "v5e:3x3", "v5litepod-3", "v5litepod:2x2", "v7x-8", "v4-7", "-8"])
def test_an_unknown_topology_lists_those_there_are(text: str) -> None:
    with pytest.raises(OptionConflict) as raised:
        parse_topologies(text)
    message = str(raised.value)
    assert message.startswith(f"{text!r} is not a known TPU. Known TPUs: ")
    assert "Known TPUs: v2, v3, v5e, v6e in 1x1, 1x2, 2x2, 2x4," in message
    assert "; v4, v5p, tpu7x in 1x1x1, 1x2x1, 2x2x1," in message
    assert "Write v5e:2x2, or a machine's name: v5litepod-4, v6e-8," in message
    assert all(family in message for family in FAMILIES)


def test_a_topology_named_twice_is_compiled_for_once() -> None:
    assert [one.name for one in parse_topologies("v6e-1, v5e:1x1,v6e:1x1,")] == ["v6e:1x1", "v5e:1x1"]
    with pytest.raises(OptionConflict, match="no TPU is named"):
        parse_topologies(" ,")


def test_a_mesh_has_one_device_along_what_it_does_not_name() -> None:
    assert DeviceMesh.parse("model=4") == DeviceMesh(data=1, model=4)
    assert DeviceMesh.parse("model=2, data=4") == DeviceMesh(data=4, model=2)
    assert [str(one) for one in (DeviceMesh(), DeviceMesh(2, 1), DeviceMesh(2, 4))] == [
        "data=1", "data=2", "data=2,model=4",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "4", "model", "model=0", "model=x", "rows=2", "model=2,model=4", "data=-1"])
def test_what_is_no_mesh_is_said_to_be_none(text: str) -> None:
    with pytest.raises(OptionConflict, match="is not of the form data=N,model=M"):
        DeviceMesh.parse(text)


def test_a_mesh_that_is_too_large_names_a_topology_that_is_large_enough() -> None:
    with pytest.raises(OptionConflict, match=r"needs 4 devices, but v5e:1x1 has 1\. Use v5e:2x2"):
        DeviceMesh(model=4).check(TpuTopology.parse("v5e:1x1"))
    DeviceMesh(model=4).check(TpuTopology.parse("v5e:2x4"))


def test_a_shard_rule_names_an_axis_for_each_dimension() -> None:
    rule = ShardRule.parse("embedding/.*=model,-")
    assert rule.axes == ("model", None)
    assert ShardRule.parse("a=b$=-,model").pattern.pattern == "a=b$"
    assert ShardRule.read(rule.to_json()) == rule
    assert str(rule) == "embedding/.*=model,-"


@pytest.mark.parametrize("text", ["embedding", "=model", "table=", "table=-", "table=rows", "table=model,model"])
def test_what_is_no_rule_is_said_to_be_none(text: str) -> None:
    with pytest.raises(OptionConflict, match="is not of the form REGEX=AXES"):
        ShardRule.parse(text)


def test_a_pattern_that_is_none_is_named() -> None:
    with pytest.raises(OptionConflict, match=r"'\(=model' is not a regular expression: missing \)"):
        ShardRule.parse("(=model")


def test_the_first_rule_that_finds_a_name_holds() -> None:
    rules = [ShardRule.parse("table=model,-"), ShardRule.parse("embedding=-,model")]
    assert find_axes("embedding/table", rules) == ("model", None)
    assert find_axes("embedding/bias", rules) == (None, "model")
    assert find_axes("dense/kernel", rules) == ()


def test_a_rule_that_cuts_nothing_over_a_mesh_says_which_axis_needs_devices() -> None:
    rule = ShardRule.parse("embedding=model,-")
    rule.check(DeviceMesh(model=2))
    with pytest.raises(
        OptionConflict, match=r"splits nothing over --mesh data=2. .* one device for model, such as --mesh model=4"
    ):
        rule.check(DeviceMesh(data=2))
