"""Tests that a version refuses lengths at which its model looks up positions beyond the end of a table."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.models.jax_function import JaxFunction, JaxInput
from tpuserve_exporter.models.jax_serving import ServedJax, Variables, serve_jax

pytestmark = [pytest.mark.xdist_group("exporter"), pytest.mark.usefixtures("tensorflow")]

TABLE = np.arange(40, dtype=np.float32).reshape(20, 2)
Lookup = Callable[..., Any]  # (table, inputs in order) → array, all of jax


def _serve(look: Lookup, longest: int | None = None, **inputs: tuple[str, ...]) -> ServedJax:
    def call(params: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": jnp.float32(0) + given["ids"].sum() + look(params["table"], *given.values()).sum()}

    named = {name: JaxInput("int32", dims) for name, dims in (inputs or {"ids": ("n", "length")}).items()}
    function = JaxFunction(call, {"table": TABLE}, named)
    return serve_jax(function, Variables.of(function.params), (1, 2), longest)


def _positions(ids: Any) -> Any:  # noqa: ANN401 - an array of jax
    return jnp.arange(ids.shape[1])


def _distances(ids: Any) -> Any:  # noqa: ANN401 - an array of jax
    return _positions(ids)[:, None] - _positions(ids)[None]


@pytest.mark.parametrize(
    ("look", "limit"),
    [
        (lambda table, ids: table[_positions(ids)], 20),
        (lambda table, ids: jnp.take(table, _positions(ids) + 2, axis=0), 18),
        (lambda table, ids: table[_positions(ids)[::4] // 4], 80),
        (lambda table, ids: table[_distances(ids) + 10], 10),
        (lambda table, ids: jax.checkpoint(lambda rows: table[rows])(_positions(ids)), 20),
        (lambda table, ids: jax.vmap(lambda rows: table[rows])(jnp.broadcast_to(_positions(ids), ids.shape)), 20),
    ],
    ids=["positions", "offset", "patches", "distances", "checkpoint", "vmap"],
)
def test_the_table_of_positions_limits_the_length(look: Lookup, limit: int) -> None:
    import tensorflow as tf

    served = _serve(look)
    assert [f"length up to {limit}: the model's table" in note for note in served.notes] == [True]
    _, graph = served.function.trace()
    ids = np.ones((2, limit + 1), np.int32)
    expected = np.sum(ids[:, :limit]) + np.sum(look(jnp.asarray(TABLE), ids[:, :limit]))
    assert graph(ids=tf.constant(ids[:, :limit]))["y"].numpy() == pytest.approx(expected)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"input ids can be at most {limit} long"):
        graph(ids=tf.constant(ids))


@pytest.mark.parametrize(
    "look",
    [
        lambda table, ids: table[ids],
        lambda table, ids: table[jnp.clip(_distances(ids), -9, 9) + 9],
        lambda table, ids: table.at[_positions(ids)].get(mode="clip"),
        lambda table, ids: ids[:, _positions(ids)[::-1]] + ids[:, -1:],
    ],
    ids=["values", "clipped distances", "mode clip", "a table as long as the input"],
)
def test_other_lookups_do_not_limit_the_length(look: Lookup) -> None:
    assert _serve(look).function.trace()  # for free sizes
    assert not _serve(look).notes


def test_each_free_dimension_has_its_own_limit() -> None:
    def look(table: Any, ids: Any, words: Any) -> Any:  # noqa: ANN401 - arrays of jax
        return table[_positions(ids)].sum() + table[_positions(words) + 5].sum()

    served = _serve(look, ids=("n", "length"), words=("n", "others"))
    assert served.source.limits == {"length": 20, "others": 15}


def test_sequence_buckets_need_no_word_on_the_table() -> None:
    served = _serve(lambda table, ids: table[_positions(ids)], longest=16)
    assert (served.source.limits, served.notes) == ({"length": 20}, ())


def test_a_bucket_beyond_the_limit_is_refused() -> None:
    with pytest.raises(OptionConflict, match=r"--sequence-buckets 32: the model takes length only up to 20.*up to 20"):
        _serve(lambda table, ids: table[_positions(ids)], longest=32)
