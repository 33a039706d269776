"""Tests for the generator of the chart: its files are current, and differences between builds become conditions."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from deploy.helm.chart import CHART, FEATURES, chart_files
from deploy.helm.merge import Build, Merger, Places
from tests.deploy.kustomize import KUBERNETES
from tests.support.wheels import read_project

CONDITIONS = {"a": ".Values.a", "b": 'eq .Values.b "x"', "c": ".Values.c"}
UNIVERSE = [frozenset(), frozenset("a"), frozenset("b"), frozenset("c"), frozenset("ab")]


def merge(values: Mapping[str, Any], places: Places | None = None) -> str:
    """Return the template of a resource with these values in the builds of the universe, by their features."""
    unchanged = Places(lambda path, value: None, lambda path, indent: ())
    builds = [Build(each, values["".join(sorted(each))]) for each in UNIVERSE if "".join(sorted(each)) in values]
    return Merger(CONDITIONS, places or unchanged).template("Kind[name]", builds, UNIVERSE)


def test_the_files_are_those_of_this_commits_manifests() -> None:
    written = {
        str(path.relative_to(CHART)): path.read_text(encoding="utf-8")
        for folder in ("templates", "files")
        for path in (CHART / folder).glob("*.yaml")
    }
    assert written == chart_files(), "run python -m deploy.helm.chart"


def test_the_chart_has_the_version_of_the_server_and_the_tag_of_the_base() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == chart["appVersion"] == read_project("server")["version"]
    (image,) = yaml.safe_load((KUBERNETES / "base/kustomization.yaml").read_text(encoding="utf-8"))["images"]
    assert image["newTag"] == chart["appVersion"]


def test_each_component_is_a_feature_or_part_of_one() -> None:
    named = {name for feature in FEATURES.values() for name in feature.components}
    # The components for a bucket and for TPUs contain that of their volume.
    assert {path.name for path in (KUBERNETES / "components").iterdir()} - named == {"cache"}


def test_an_equal_part_has_no_condition() -> None:
    same = {"kind": "Kind", "spec": {"list": ["x"], "size": 1}}
    assert merge(dict.fromkeys(("", "a", "b", "c", "ab"), same)) == ("kind: Kind\nspec:\n  list:\n  - x\n  size: 1\n")


@pytest.mark.parametrize(
    ("having", "condition"),
    [
        (("a", "ab"), ".Values.a"),
        (("b", "ab"), 'eq .Values.b "x"'),
        (("", "c"), 'and (not .Values.a) (not (eq .Values.b "x"))'),
        (("", "b", "c"), "not .Values.a"),
        (("a", "c", "ab"), "or .Values.a .Values.c"),
        (("ab",), 'and .Values.a (eq .Values.b "x")'),
    ],
)
def test_a_part_of_some_builds_has_the_simplest_condition(having: tuple[str, ...], condition: str) -> None:
    values = {name: {"kind": "Kind", **({"part": 1} if name in having else {})} for name in ("", "a", "b", "c", "ab")}
    assert merge(values) == f"kind: Kind\n{{{{- if {condition} }}}}\npart: 1\n{{{{- end }}}}\n"
    # The same for a whole resource.
    assert merge({name: {"kind": "Kind"} for name in having}) == (
        f"{{{{- if {condition} }}}}\nkind: Kind\n{{{{- end }}}}\n"
    )


def test_different_values_are_branches_and_neighbours_share_a_block() -> None:
    usual, special = {"size": 1, "list": ["x"]}, {"size": 2, "list": ["x", "p", "q"]}
    assert merge({"": usual, "a": special, "b": usual, "c": usual, "ab": special}) == (
        "{{- if .Values.a }}\nsize: 2\n{{- else }}\nsize: 1\n{{- end }}\n"
        "list:\n- x\n{{- if .Values.a }}\n- p\n- q\n{{- end }}\n"
    )


def test_a_difference_that_no_condition_explains_is_an_error() -> None:
    with pytest.raises(
        ValueError, match=r"Kind\[name\]: no condition explains the builds \[\['a'\], \['b'\], \['c'\]\]"
    ):
        merge({name: {"kind": "Kind"} for name in ("a", "b", "c")})


def test_items_of_a_list_are_recognised_by_their_names() -> None:
    def env(value: str) -> dict[str, Any]:
        return {"env": [{"name": "X", "value": value}, {"name": "off", "value": "true"}]}

    assert merge({"": env("1"), "a": env("2"), "b": env("1"), "c": env("1"), "ab": env("2")}) == (
        'env:\n- name: X\n{{- if .Values.a }}\n  value: "2"\n{{- else }}\n  value: "1"\n{{- end }}\n'
        '- name: "off"\n  value: "true"\n'
    )


def test_values_of_the_chart_replace_scalars_and_extend_lists() -> None:
    places = Places(
        lambda path, value: "{{ .Values.size }}" if path == "Kind[name].size" else None,
        lambda path, indent: (f"{' ' * indent}# more",) if path == "Kind[name].list" else (),
    )
    same = {"size": 1, "list": ["x"]}
    assert merge(dict.fromkeys(("", "a", "b", "c", "ab"), same), places) == (
        "size: {{ .Values.size }}\nlist:\n- x\n# more\n"
    )
