"""Tests for the choice of a stored tree's arrays that are a JAX model's parameters, and the roles of the others."""

import pytest

from tpuserve_exporter.errors import CheckpointMismatch, OptionConflict
from tpuserve_exporter.models.tree_path import KeyPath
from tpuserve_exporter.options.export_options import Rename, Weights
from tpuserve_exporter.sources.trees.restore import sort_leftover
from tpuserve_exporter.sources.trees.tree_matching import match_trees
from tpuserve_exporter.terms.restore_report import ArraySpec

Specs = dict[KeyPath, ArraySpec]


def specs(*names: str, shape: tuple[int, ...] = (2, 2)) -> Specs:
    return {tuple(name.split("/")): ArraySpec("float32", shape) for name in names}


def taken(model: Specs, stored: Specs, weights: Weights = "auto", renames: tuple[str, ...] = ()) -> dict[str, str]:
    pairs = match_trees(model, stored, weights, [Rename.parse(text) for text in renames]).pairs
    return {"/".join(path): "/".join(found) for path, found in pairs.items()}


LINEN = specs("params/dense/kernel", "batch_stats/norm/mean")
BARE = specs("dense/kernel")


@pytest.mark.parametrize(
    ("model", "stored", "expected"),
    [
        pytest.param(LINEN, LINEN, {"params/dense/kernel": "params/dense/kernel"}, id="as it is"),
        pytest.param(LINEN, specs("dense/kernel"), {"params/dense/kernel": "dense/kernel"}, id="parameters alone"),
        pytest.param(BARE, specs("params/dense/kernel"), {"dense/kernel": "params/dense/kernel"}, id="deeper"),
        pytest.param(BARE, specs("dense/kernel/value"), {"dense/kernel": "dense/kernel/value"}, id="boxed"),
        pytest.param(
            LINEN,
            specs("state/params/dense/kernel", "state/opt_state/0/mu/dense/kernel", "state/batch_stats/norm/mean"),
            {"params/dense/kernel": "state/params/dense/kernel"},
            id="within a training state",
        ),
        pytest.param(
            BARE,
            specs("target_params/dense/kernel", "params/dense/kernel"),
            {"dense/kernel": "params/dense/kernel"},
            id="beside a target network",
        ),
    ],
)
def test_parameters_are_found_wherever_training_keeps_them(
    model: Specs, stored: Specs, expected: dict[str, str]
) -> None:
    assert expected.items() <= taken(model, stored).items()


@pytest.mark.parametrize(("weights", "name"), [("auto", "ema_params"), ("ema", "ema_params"), ("raw", "params")])
def test_a_moving_average_is_taken_by_itself_or_as_told(weights: Weights, name: str) -> None:
    stored = specs("params/dense/kernel", "ema_params/dense/kernel", "opt_state/0/nu/dense/kernel")
    assert taken(BARE, stored, weights) == {"dense/kernel": f"{name}/dense/kernel"}
    assert taken(LINEN, stored, weights) == {"params/dense/kernel": f"{name}/dense/kernel"}
    notes = match_trees(BARE, stored, weights).notes
    message = "used the moving average of the weights, 'ema_params' (--weights raw uses 'params')"
    assert notes == (() if weights == "raw" else (message,))


@pytest.mark.parametrize("name", ["student", "teacher", "student/params"])
def test_all_collections_are_those_of_one_model(name: str) -> None:
    of_both = [
        f"{one}/{path}" for one in ("student", "teacher") for path in ("params/dense/kernel", "batch_stats/norm/mean")
    ]
    with pytest.raises(CheckpointMismatch, match=r"'student/params', 'teacher/params'.*--weights student/params$"):
        match_trees(LINEN, specs(*of_both))
    assert {one.partition("/")[0] for one in taken(LINEN, specs(*of_both), name).values()} == {name.partition("/")[0]}
    beside = specs("params/dense/kernel", "batch_stats/norm/mean", *of_both[2:], "ema_batch_stats/norm/mean")
    assert set(taken(LINEN, beside, "teacher/params").values()) == set(of_both[2:])
    assert set(taken(LINEN, beside).values()) == {"params/dense/kernel", "batch_stats/norm/mean"}


@pytest.mark.parametrize("other", ["initial/params", "anchor/model", "agent/target/params"])
def test_a_preferred_name_deeper_in_the_tree_does_not_decide(other: str) -> None:
    with pytest.raises(CheckpointMismatch, match=r"fit equally well: .*'theta'.*--weights"):
        match_trees(BARE, specs("theta/dense/kernel", f"{other}/dense/kernel"))


def test_parts_with_some_of_the_parameters_are_said() -> None:
    stored = specs("frozen/a/kernel", "frozen/b/kernel", "trainable/b/kernel", "opt_state/0/mu/b/kernel")
    notes = match_trees(specs("a/kernel", "b/kernel"), stored).notes
    assert len(notes) == 1
    assert "some of the model's parameters, too: 'trainable' (1 of 2)." in notes[0]


def test_an_average_that_the_optimizer_keeps_is_taken_only_by_its_name() -> None:
    stored = specs("params/dense/kernel", "opt_state/1/ema/dense/kernel", "opt_state/0/mu/dense/kernel")
    assert taken(BARE, stored) == {"dense/kernel": "params/dense/kernel"}
    with pytest.raises(CheckpointMismatch, match="If it holds weights, use --weights opt_state/1/ema"):
        match_trees(BARE, stored, "ema")
    assert taken(BARE, stored, "opt_state/1/ema") == {"dense/kernel": "opt_state/1/ema/dense/kernel"}


def test_optimizer_state_is_found_in_a_tuple_without_names() -> None:
    stored = specs("0/dense/kernel", "1/0/mu/dense/kernel", "1/0/nu/dense/kernel", "1/1/ema/dense/kernel")
    stored |= specs("1/0/count", "1/1/count", shape=())
    assert taken(BARE, stored) == {"dense/kernel": "0/dense/kernel"}
    with pytest.raises(CheckpointMismatch, match="'1/0/nu' is optimizer state, and neither an average nor"):
        match_trees(BARE, stored, "1/0/nu")


def test_a_counter_and_moments_beside_the_parameters_are_no_state_of_them() -> None:
    stored = specs("params/dense/kernel", "ema/dense/kernel", "mu/dense/kernel", "nu/dense/kernel")
    stored |= specs("count", "step", shape=())
    assert taken(BARE, stored, "raw") == {"dense/kernel": "params/dense/kernel"}
    assert taken(BARE, stored) == {"dense/kernel": "ema/dense/kernel"}


def test_only_optimizer_state_that_fits_is_taken_only_by_its_name() -> None:
    stored = specs("optimizer/target/dense/kernel", "optimizer/state/0/mu/dense/kernel")
    with pytest.raises(CheckpointMismatch, match=r"only optimizer state fits the model\..*--weights optimizer/target"):
        match_trees(BARE, stored)
    assert taken(BARE, stored, "optimizer/target") == {"dense/kernel": "optimizer/target/dense/kernel"}


def test_a_named_part_is_taken_with_its_other_collections() -> None:
    stored = specs("params/dense/kernel", "batch_stats/norm/mean", "teacher/params/dense/kernel")
    names = {"params/dense/kernel": "teacher/params/dense/kernel", "batch_stats/norm/mean": "batch_stats/norm/mean"}
    assert taken(LINEN, stored, "teacher") == names


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_one_of_several_parts_that_fit_alike_is_taken_by_its_name(name: str) -> None:
    stored = specs("a/dense/kernel", "b/dense/kernel", "c/dense/kernel")
    assert taken(BARE, stored, name) == {"dense/kernel": f"{name}/dense/kernel"}


def test_half_an_average_is_not_taken_by_itself() -> None:
    model = specs("dense/kernel", "dense/bias")
    stored = specs("params/dense/kernel", "params/dense/bias", "ema/dense/kernel")
    assert set(taken(model, stored).values()) == {"params/dense/kernel", "params/dense/bias"}


def test_an_average_that_was_not_kept_is_missed() -> None:
    with pytest.raises(CheckpointMismatch, match="the checkpoint has no moving average"):
        match_trees(BARE, specs("params/dense/kernel"), "ema")


def test_parts_that_fit_alike_are_told_apart_by_a_rename() -> None:
    stored = specs("generator/dense/kernel", "teacher/dense/kernel")
    with pytest.raises(CheckpointMismatch, match=r"'generator', 'teacher'\. Choose .* --rename '\^generator/=params/'"):
        match_trees(BARE, stored)
    assert taken(BARE, stored, renames=("^teacher/=params/",)) == {"dense/kernel": "teacher/dense/kernel"}


def test_renames_come_before_matching() -> None:
    stored = specs("params/old/kernel", "params/other/kernel")
    assert taken(BARE, stored, renames=("old/=dense/",)) == {"dense/kernel": "params/old/kernel"}
    with pytest.raises(
        OptionConflict, match="gives params/old/kernel and params/other/kernel the same name, params/x/kernel"
    ):
        match_trees(BARE, stored, renames=[Rename.parse("old|other=x")])


def test_what_is_left_over_is_sorted_by_what_it_is() -> None:
    stored = specs(
        "params/dense/kernel",
        "params/extra/kernel",
        "batch_stats/norm/mean",
        "opt_state/0/mu/dense/kernel",
        "ema_params/dense/kernel",
        "teacher/kernel",
        "dropout_rng",
    ) | specs("step", shape=())
    left = sort_leftover(stored, match_trees(BARE, stored, "raw"))
    assert {"/".join(path) for path in left.unused} == {"params/extra/kernel", "batch_stats/norm/mean"}
    assert left.optimizer_state == [("opt_state", "0", "mu", "dense", "kernel")]
    assert left.others == {"ema_params": [("ema_params", "dense", "kernel")], "teacher": [("teacher", "kernel")]}
    assert left.bookkeeping == [("dropout_rng",), ("step",)]


def test_where_nothing_fits_all_is_unused() -> None:
    stored = specs("params/conv/kernel", "opt_state/conv/kernel")
    matching = match_trees(BARE, stored)
    assert not matching.pairs
    assert sort_leftover(stored, matching).unused == [("params", "conv", "kernel")]


@pytest.mark.parametrize(
    ("model", "stored"),
    [
        pytest.param([("mlp/~/linear_0", "w")], [("mlp/~/linear_0", "w")], id="one key on both sides"),
        pytest.param(
            [("mlp/~/linear_0", "w")], [("params", "mlp", "~", "linear_0", "w")], id="nested in the checkpoint"
        ),
        pytest.param([("a", "b")], [("a/b",)], id="flat in the checkpoint"),
        pytest.param([("a/b",)], [("a/b",), ("a", "b")], id="beside a path of the same name"),
    ],
)
def test_keys_with_slashes_are_found(model: list[KeyPath], stored: list[KeyPath]) -> None:
    spec = ArraySpec("float32", (2,))
    pairs = match_trees(dict.fromkeys(model, spec), dict.fromkeys(stored, spec)).pairs
    assert pairs == {model[0]: stored[0]}


def test_a_renamed_prefix_leads_to_keys_with_slashes() -> None:
    spec = ArraySpec("float32", (2,))
    stored, model = ("net/mlp/~/linear_0", "w"), ("mlp/~/linear_0", "w")
    assert match_trees({model: spec}, {stored: spec}, "auto", [Rename.parse("^net/=")]).pairs == {model: stored}


def test_a_model_that_takes_the_optimizer_state_gets_it() -> None:
    tree = specs("params/w", "opt_state/0/mu/w", "opt_state/0/count")
    assert taken(tree, tree) == {"/".join(path): "/".join(path) for path in tree}


def test_a_tree_may_be_a_single_array() -> None:
    spec = ArraySpec("float32", (2,))
    matching = match_trees({(): spec}, {(): spec})
    assert matching.pairs == {(): ()}
    assert sort_leftover({("w",): spec}, match_trees({(): spec}, {("w",): spec})).unused == [("w",)]
