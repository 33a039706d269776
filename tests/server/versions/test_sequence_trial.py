"""Tests for the findings of trials, with models that are numpy functions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from tpuserve_server.core.batching.parameters import BatchingOptions
from tpuserve_server.core.batching.sequences import Axis, Sequences, find_sequences
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Array, Signature, Tensors, TensorSpec
from tpuserve_server.versions.sequence_trial import try_all_sequences, try_sequences

FLOAT = np.dtype(np.float32)


def signature(inputs: str, **outputs: tuple[int | None, ...]) -> Signature:
    """Return a signature whose inputs have one-letter names and the shape (rows, length)."""
    return Signature(
        "serving_default",
        {name: TensorSpec(name, FLOAT, (None, None)) for name in inputs},
        {name: TensorSpec(name, FLOAT, shape) for name, shape in outputs.items()},
    )


@dataclass
class Model:
    """A model that raises numpy's errors."""

    signature: Signature
    function: Callable[..., Mapping[str, Array]]
    runs: list[tuple[int, ...]] = field(default_factory=list)
    device: str = "numpy"
    unrepeatable: str = ""
    never_blocks: bool = False
    max_in_flight: int = 1

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return {"serving_default": self.signature}

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> "Run":
        self.runs.append(tuple(array.shape[1] for array in inputs.values()))
        return Run(self, inputs)

    def close(self) -> None: ...


@dataclass
class Run:
    model: Model
    inputs: Tensors

    def result(self) -> Tensors:
        try:
            return self.model.function(**self.inputs)
        except ValueError as error:
            raise InvalidArgument(str(error)) from None


def tried(model: Model, buckets: tuple[int, ...] = (4, 8)) -> Sequences:
    sequences = find_sequences(model.signature, buckets)
    assert sequences is not None
    return try_sequences(model, model.signature, sequences, 1)


def outer(a: Array, b: Array) -> Array:
    return a[:, :, None] * b[:, None, :]


def test_inputs_that_run_at_lengths_of_their_own_are_told_apart_and_outputs_follow_them() -> None:
    model = Model(
        signature("ab", product=(None, None, None), last=(None, None)),
        lambda a, b: {"product": outer(a, b), "last": b},
    )
    found = tried(model)
    assert found.ties == ((0,), (1,))
    assert found.follows == {Axis("product", 1): (0,), Axis("product", 2): (1,), Axis("last", 1): (1,)}
    assert found.uncut == ()


def test_inputs_that_only_run_at_one_length_are_tied() -> None:
    model = Model(signature("abc", sum=(None, None)), lambda a, b, c: {"sum": a + b + c})
    found = tried(model)
    assert found.ties == ((0, 1, 2),)
    assert found.follows == {Axis("sum", 1): (0, 1, 2)}


def test_ties_of_two_and_two_are_found() -> None:
    model = Model(
        signature("abcd", first=(None, None), second=(None, None)),
        lambda a, b, c, d: {"first": a + c, "second": b + d},
    )
    found = tried(model)
    assert found.ties == ((0, 2), (1, 3))
    assert found.follows == {Axis("first", 1): (0, 2), Axis("second", 1): (1, 3)}


@pytest.mark.parametrize(
    "made",
    [
        lambda a: np.ones((len(a), 4), FLOAT),
        lambda a: np.ones((len(a), 8), FLOAT),
        lambda a: np.concatenate([a, a[:, :1]], axis=1),
        lambda a: a[:, ::2],
    ],
    ids=["always a bucket", "always the other", "one more", "half"],
)
def test_an_output_of_a_length_of_its_own_follows_nothing(made: Callable[[Array], Array]) -> None:
    found = tried(Model(signature("a", y=(None, None)), lambda a: {"y": made(a)}))
    assert found.uncut == (Axis("y", 1),)
    assert found.cut({"y": np.ones((1, 4))}, (3,), (4,))["y"].shape == (1, 4)


def test_a_length_of_one_which_goes_with_all_is_not_tried() -> None:
    model = Model(signature("ab", sum=(None, None)), lambda a, b: {"sum": a + b})
    assert tried(model, (1, 4, 8)).ties == ((0, 1),)
    assert {length for run in model.runs for length in run} == {4, 8}


def test_one_bucket_is_tried_against_its_half() -> None:
    model = Model(signature("ab", sum=(None, None)), lambda a, b: {"sum": a + b})
    assert tried(model, (64,)).ties == ((0, 1),)
    assert {length for run in model.runs for length in run} == {32, 64}


@pytest.mark.parametrize("buckets", [(1,), (3,), (1, 2)])
def test_lengths_too_short_to_halve_tell_nothing(buckets: tuple[int, ...]) -> None:
    model = Model(signature("a", y=(None, None)), lambda a: {"y": a})
    assert tried(model, buckets) == find_sequences(model.signature, buckets)
    assert not model.runs


def test_a_model_that_refuses_made_up_rows_is_left_as_it_was() -> None:
    def refuse(a: Array) -> Mapping[str, Array]:
        raise ValueError("all zeros")

    model = Model(signature("a", y=(None, None)), refuse)
    assert tried(model) == find_sequences(model.signature, (4, 8))


def test_of_many_inputs_the_ties_stay_unknown_and_outputs_follow_all_or_nothing() -> None:
    model = Model(
        signature("abcde", y=(None, None), z=(None, None)),
        lambda a, b, c, d, e: {"y": a + b + c + d + e, "z": np.ones((1, 8), FLOAT)},
    )
    found = tried(model)
    assert found.ties is None
    assert found.follows == {Axis("y", 1): (0, 1, 2, 3, 4), Axis("z", 1): ()}
    assert model.runs == [(4,) * 5, (8,) * 5]


def test_signatures_without_sequences_are_not_run() -> None:
    model = Model(signature("a", y=(None, None)), lambda a: {"y": a})
    batching = {"serving_default": BatchingOptions(8)}
    assert try_all_sequences(model, batching) == batching
    assert not model.runs


def test_trials_run_the_smallest_batch() -> None:
    rows: list[int] = []

    def count(a: Array) -> Mapping[str, Array]:
        rows.append(len(a))
        return {"y": a}

    model = Model(signature("a", y=(None, None)), count)
    sequences = find_sequences(model.signature, (4, 8))
    assert sequences is not None
    options = BatchingOptions(8, (2, 8), sequence_buckets=(4, 8), sequences=sequences)
    tried = try_all_sequences(model, {"serving_default": options})
    assert tried["serving_default"].sequences == try_sequences(model, model.signature, sequences, 1)
    assert set(rows[:2]) == {2}
