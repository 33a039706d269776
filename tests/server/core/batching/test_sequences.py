import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_device import DOUBLE, DOUBLE_WIDE
from tpuserve_server.core.batching.arrays import empty_batch, fill_padded, split_rows
from tpuserve_server.core.batching.sequences import Axis, Sequences, find_sequences
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Signature, Tensors, TensorSpec

INT = np.dtype(np.int32)
FLOAT = np.dtype(np.float32)
TEXT = np.dtype(object)

# Two texts of independent lengths, and possible outputs of a model.
TRANSLATE = Signature(
    "translate",
    inputs={
        "source": TensorSpec("source", INT, (None, None)),
        "target": TensorSpec("target", INT, (None, None)),
        "weight": TensorSpec("weight", FLOAT, (None, 1)),
    },
    outputs={
        "scores": TensorSpec("scores", FLOAT, (None, None, 3)),
        "attention": TensorSpec("attention", FLOAT, (None, None, None)),
        "whole": TensorSpec("whole", FLOAT, (None, 1)),
    },
)


def texts(source: int, target: int, rows: int = 2) -> Tensors:
    return {
        "source": np.ones((rows, source), INT),
        "target": np.ones((rows, target), INT),
        "weight": np.ones((rows, 1), FLOAT),
    }


@pytest.fixture
def sequences() -> Sequences:
    found = find_sequences(TRANSLATE, (4, 8))
    assert found is not None
    return found


def test_free_inner_dimensions_are_found_in_the_signatures_order(sequences: Sequences) -> None:
    assert sequences.axes == (Axis("source", 1), Axis("target", 1))
    assert list(sequences.follows) == [Axis("scores", 1), Axis("attention", 1), Axis("attention", 2)]


def test_rows_of_one_shape_have_no_sequences() -> None:
    assert find_sequences(DOUBLE, (4, 8)) is None


@pytest.mark.parametrize(("own", "padded"), [((1, 4), (4, 4)), ((5, 4), (8, 4)), ((0, 8), (4, 8))])
def test_each_length_is_rounded_up_by_itself(
    sequences: Sequences, own: tuple[int, int], padded: tuple[int, int]
) -> None:
    assert sequences.padded_lengths(texts(*own)) == padded


def test_a_length_beyond_the_last_bucket_is_refused_by_name(sequences: Sequences) -> None:
    message = "Input 'target' has length 9 in dimension 1; the largest sequence bucket is 8"
    with pytest.raises(InvalidArgument, match=message):
        sequences.padded_lengths(texts(2, 9))


def test_the_shape_of_rows_has_the_padded_lengths(sequences: Sequences) -> None:
    own = {name: array.shape[1:] for name, array in texts(3, 5).items()}
    assert sequences.row_shapes(own, (4, 8)) == {"source": (4,), "target": (8,), "weight": (1,)}


@pytest.mark.parametrize(
    ("dtype", "value"), [(INT, 0), (FLOAT, 0), (np.dtype(bool), 0), (TEXT, b"")], ids=["int", "float", "bool", "text"]
)
def test_padding_is_nothing_where_nobody_names_a_value(dtype: np.dtype[np.generic], value: object) -> None:
    spec = TensorSpec("x", dtype, (None, None))
    sequences = find_sequences(Signature("s", {"x": spec}, {"y": spec}), (4,))
    assert sequences is not None
    assert sequences.pad_values == {"x": value}


def test_a_named_value_pads_its_input() -> None:
    sequences = find_sequences(TRANSLATE, (4,), {"target": 7})
    assert sequences is not None
    assert sequences.pad_values == {"source": 0, "target": 7}


def outputs(source: int, target: int) -> Tensors:
    return {
        "scores": np.arange(2 * target * 3).reshape(2, target, 3),
        "attention": np.arange(2 * target * source).reshape(2, target, source),
        "whole": np.ones((2, 1)),
    }


def test_outputs_are_cut_to_the_lengths_that_came(sequences: Sequences) -> None:
    made = outputs(4, 8)
    cut = sequences.cut(made, (3, 5), (4, 8))
    np.testing.assert_array_equal(cut["scores"], made["scores"][:, :5])
    np.testing.assert_array_equal(cut["attention"], made["attention"][:, :5, :3])
    assert cut["whole"].shape == (2, 1)


def test_an_output_of_another_length_is_left_as_it_is(sequences: Sequences) -> None:
    made = {"scores": np.ones((2, 9, 3))}
    assert sequences.cut(made, (3, 5), (4, 8))["scores"].shape == (2, 9, 3)


def test_an_output_that_could_end_in_two_places_is_refused(sequences: Sequences) -> None:
    message = (
        "Inputs of different lengths were padded to one sequence bucket, and the length of dimension 1 of output "
        "'scores' .*: 3 or 4"
    )
    with pytest.raises(InvalidArgument, match=message):
        sequences.cut(outputs(4, 4), (3, 4), (4, 4))
    assert sequences.cut(outputs(4, 4), (3, 3), (4, 4))["scores"].shape == (2, 3, 3)


def learned(ties: tuple[tuple[int, ...], ...]) -> Sequences:
    follows = {Axis("scores", 1): (1,), Axis("attention", 1): (1,), Axis("attention", 2): (0,)}
    return Sequences((4, 8), (Axis("source", 1), Axis("target", 1)), {"source": 0, "target": 0}, follows, ties)


def test_what_each_output_follows_tells_inputs_of_one_bucket_apart() -> None:
    cut = learned(((0,), (1,))).cut(outputs(4, 4), (3, 2), (4, 4))
    assert (cut["scores"].shape, cut["attention"].shape) == ((2, 2, 3), (2, 2, 3))


def test_lengths_that_the_model_takes_only_equal_must_be_equal_before_padding_hides_it() -> None:
    message = "Lengths must be equal: dimension 1 of 'source' 3, dimension 1 of 'target' 4"
    with pytest.raises(InvalidArgument, match=message):
        learned(((0, 1),)).padded_lengths(texts(3, 4))
    assert learned(((0, 1),)).padded_lengths(texts(3, 3)) == (4, 4)


@pytest.mark.parametrize(
    ("ties", "combinations"),
    [
        (((0, 1),), [(4, 4), (8, 8)]),
        (((0,), (1,)), [(4, 4), (4, 8), (8, 4), (8, 8)]),
    ],
)
def test_combinations_are_those_a_request_can_have(
    ties: tuple[tuple[int, ...], ...], combinations: list[tuple[int, ...]]
) -> None:
    assert list(learned(ties).combinations()) == combinations


def test_of_unknown_ties_only_equal_lengths_combine(sequences: Sequences) -> None:
    assert list(sequences.combinations()) == [(4, 4), (8, 8)]


@given(
    lengths=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(1, 3)), min_size=1, max_size=5),
    buckets=st.sets(st.integers(1, 7), max_size=3).map(lambda some: (*sorted(some), 8)),
    padding=st.integers(0, 3),
)
def test_lengths_and_rows_come_back_to_their_owners(
    lengths: list[tuple[int, int, int]], buckets: tuple[int, ...], padding: int
) -> None:
    spec = TensorSpec("x", np.dtype(np.int64), (None, None, 2, None))
    sequences = find_sequences(Signature("s", {"x": spec}, {"x": spec}), buckets, {"x": -1})
    assert sequences is not None
    sequences = Sequences(
        buckets, sequences.axes, sequences.pad_values, {Axis("x", 1): (0,), Axis("x", 3): (1,)}, ((0,), (1,))
    )
    batches: dict[tuple[int, ...], list[Tensors]] = {}
    for number, (first, last, rows) in enumerate(lengths):
        shape = (rows, first, 2, last)
        part: Tensors = {"x": np.arange(math.prod(shape)).reshape(shape) + 1000 * number}
        batches.setdefault(sequences.padded_lengths(part), []).append(part)
    for padded, parts in batches.items():
        sizes = [len(part["x"]) for part in parts]
        own = {"x": parts[0]["x"].shape[1:]}
        batch = empty_batch(parts[0], sequences.row_shapes(own, padded), sum(sizes) + padding)
        fill_padded(batch, parts, sum(sizes), sequences.pad_values)
        assert set(batch["x"].shape[1:]) <= {2, *buckets}
        for part, back in zip(parts, split_rows(batch, sizes, sum(sizes) + padding), strict=True):
            np.testing.assert_array_equal(sequences.cut(back, sequences.own_lengths(part), padded)["x"], part["x"])
            assert (back["x"] == -1).sum() == back["x"].size - part["x"].size


def test_a_sample_is_cropped_to_shorter_lengths(sequences: Sequences) -> None:
    cropped = sequences.crop(texts(6, 3), (4, 4))
    assert {name: array.shape for name, array in cropped.items()} == {
        "source": (2, 4),
        "target": (2, 3),
        "weight": (2, 1),
    }


def test_wide_rows_follow_their_input() -> None:
    sequences = find_sequences(DOUBLE_WIDE, (4,))
    assert sequences is not None
    assert sequences.follows == {Axis("y", 1): (0,), Axis("x", 1): (0,)}
