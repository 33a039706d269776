"""Tests that made-up inputs reach the rows of tables and the keys of vocabularies, and that these are counted."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpuserve_exporter.checks.touched_rows import count_touched
from tpuserve_exporter.graphs.program_lookups import read_lookups
from tpuserve_exporter.sources.saved_model.loaded import PythonModel
from tpuserve_exporter.terms.domain import Domain
from tpuserve_exporter.terms.samples import find_made_up
from tpuserve_exporter.terms.signature import Array, Tensors
from tpuserve_exporter.version.loaded_model import WrittenModel, open_session
from tpuserve_exporter.version.warmup import write_warmup

ROWS = 4
WORDS = ["the", "quick", "fox"]
COLORS = ["blue", "green", "red"]
USERS = [5, 77, 1234]


@pytest.fixture(scope="module")
def lookups(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a model that looks up each of its inputs in another way."""
    import keras
    from keras import layers

    def embed(rows: int, name: str, ids: object) -> object:
        return keras.ops.mean(layers.Embedding(rows, 2, name=name)(ids), axis=1)

    shapes = {
        "text": (1,),
        "color": (1,),
        "user": (1,),
        "ids": (None,),
        "mask": (None,),
        "pair": (3,),
        "image": (4, 4, 3),
    }
    dtypes = {"text": "string", "color": "string", "user": "int64", "image": "float32"}
    inputs = {name: keras.Input(shape, dtype=dtypes.get(name, "int32"), name=name) for name, shape in shapes.items()}
    text = layers.TextVectorization(vocabulary=WORDS, output_sequence_length=6)
    mask = keras.ops.cast(inputs["mask"], "float32")[..., None]
    parts = [
        embed(20, "words", text(inputs["text"])),
        embed(4, "colors", layers.StringLookup(vocabulary=COLORS)(inputs["color"])),
        embed(4, "users", layers.IntegerLookup(vocabulary=USERS)(inputs["user"])),
        keras.ops.sum(layers.Embedding(50, 2, name="tokens")(inputs["ids"]) * mask, axis=1),
        layers.Embedding(9, 2, name="first")(inputs["pair"][:, 0]),
        layers.Embedding(5, 2, name="second")(inputs["pair"][:, 1]),
        layers.CategoryEncoding(7, output_mode="one_hot")(inputs["pair"][:, 2:]),
        layers.GlobalAveragePooling2D()(layers.Rescaling(1 / 255)(inputs["image"])),
    ]
    path = tmp_path_factory.mktemp("lookups") / "model"
    keras.Model(inputs, layers.Dense(3)(layers.Concatenate()(parts))).export(path, verbose=False)
    return path


@pytest.fixture(scope="module")
def samples(lookups: Path) -> Tensors:
    model = WrittenModel(lookups, PythonModel(lookups))
    found, reason = find_made_up(model.signatures["serving_default"], ROWS, model)
    assert found is not None, reason
    return found


def extremes(value: Array) -> tuple[object, object]:
    return value.min().item(), value.max().item()


def test_indices_reach_the_first_and_the_last_row(samples: Tensors) -> None:
    assert extremes(samples["ids"]) == (0, 49)
    assert samples["ids"][:, 0].all()
    assert [extremes(samples["pair"][:, column]) for column in range(3)] == [(0, 8), (0, 4), (0, 6)]


def test_a_mask_stays_a_mask(samples: Tensors) -> None:
    assert extremes(samples["mask"]) == (0, 1)
    assert samples["mask"][:, 0].all()


def test_keys_come_from_the_vocabularies_and_one_is_unknown(samples: Tensors) -> None:
    words = {word.decode() for text in samples["text"].flat for word in text.split()}
    assert words <= {*WORDS, "tpuserve"}
    assert {"tpuserve", WORDS[0]} < words
    assert {"red", "blue", "tpuserve"} <= {one.decode() for one in samples["color"].flat} <= {*COLORS, "tpuserve"}
    assert {1235, 5, 1234} <= set(samples["user"].flat) <= {*USERS, 1235}


def test_floats_that_are_divided_by_255_are_pixels(samples: Tensors) -> None:
    assert 200 < samples["image"].max() <= 255


def test_touched_rows_are_counted_by_table(lookups: Path, samples: Tensors) -> None:
    with open_session(lookups) as session:
        tables = {one.name.split("/")[0]: one for one in count_touched(session, {"serving_default": samples})}
    assert {name: (one.touched, one.rows) for name, one in tables.items()} == {
        "colors": (len({*samples["color"].flat}), 4),
        "first": (len(np.unique(samples["pair"][:, 0])), 9),
        "second": (len(np.unique(samples["pair"][:, 1])), 5),
        "tokens": (len(np.unique(samples["ids"])), 50),
        "users": (len(np.unique(samples["user"])), 4),
        "words": (len({word for text in samples["text"].flat for word in text.split()}) + 1, 20),  # and padding
    }


def test_warm_up_requests_of_the_model_come_first(lookups: Path, samples: Tensors, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "model"
    shutil.copytree(lookups, copy)
    recorded = {name: value[:2] for name, value in samples.items()} | {"user": np.array([[77], [9]])}
    with open_session(copy) as session:
        signature = session.signatures["serving_default"]
        write_warmup(copy, "model", [(signature, recorded)], [2], session)
        found, _ = find_made_up(signature, ROWS, session)
        shorter, _ = find_made_up(signature, ROWS, session, longest=4)
    assert found is not None
    assert shorter is not None
    assert found["user"][:2].tolist() == [[77], [9]]
    assert found["ids"].shape == (ROWS, samples["ids"].shape[1])
    assert shorter["ids"].shape == (ROWS, 4)


def test_a_program_shows_its_tables_and_columns() -> None:
    import jax
    import jax.numpy as jnp
    from jax import export

    def call(tables: Mapping[str, Array], ids: Array, pair: Array) -> list[Array]:
        first = jnp.take(tables["first"], pair[:, 0], axis=0)
        second = jnp.asarray(tables["second"]).at[pair[:, 1]].get(mode="clip")
        return [tables["tokens"][ids].sum(1), first + second, jax.nn.one_hot(pair[:, 2], 7)]

    tables = {name: np.zeros((rows, 2), np.float32) for name, rows in (("first", 9), ("second", 5), ("tokens", 50))}
    shapes = (None, "rows, length", "rows, 3")
    specs = export.symbolic_args_specs((tables, np.zeros((2, 8), np.int32), np.zeros((2, 3), np.int32)), shapes)
    program = export.export(jax.jit(call), platforms=["cpu"])(*specs).mlir_module_serialized
    found, probe = read_lookups(program, 5, {3, 4})
    assert sorted((one.rows, one.arguments, one.table) for one in found) == [
        (5, ((4, (1,)),), 1),
        (7, ((4, (2,)),), None),
        (9, ((4, (0,)),), 0),
        (50, ((3, None),), 2),
    ]
    assert probe is not None
    assert probe.dtypes == ("int32",) * 3


def test_a_loop_in_a_program_shows_its_tables_and_columns() -> None:
    import jax
    import jax.numpy as jnp
    from jax import export, lax

    def call(first: Array, second: Array, third: Array, ids: Array) -> list[Array]:
        rows = lax.map(lambda row: first[row[0]] + second[row[1:]].sum(0), ids)
        last, _ = lax.scan(lambda before, row: (row[2], third[before]), jnp.int32(0), ids)
        return [rows, last]

    shapes = [jax.ShapeDtypeStruct((rows, 2), np.float32) for rows in (9, 5, 7)]
    (ids,) = export.symbolic_args_specs((np.zeros((2, 3), np.int32),), "rows, 3")
    program = export.export(jax.jit(call), platforms=["cpu"])(*shapes, ids).mlir_module_serialized
    found, probe = read_lookups(program, 4, {3})
    assert sorted((one.rows, one.arguments) for one in found) == [
        (5, ((3, (1, 2)),)), (7, ((3, (2,)),)), (9, ((3, (0,)),))
    ]  # fmt: skip
    assert probe is None


@pytest.mark.parametrize("shape", [(), (1,), (4,), (1, 1), (4, 1), (2, 3, 4)])
@pytest.mark.parametrize(("limits", "rows"), [(((None, 1),), 1), (((None, 7),), 7), ((((1,), 9), (None, 5)), 5)])
def test_every_draw_is_in_its_table(shape: tuple[int, ...], limits: Any, rows: int) -> None:  # noqa: ANN401 - as in Domain
    drawn = Domain(limits).draw_integers(np.random.default_rng(0), shape)
    assert drawn.shape == shape
    assert (drawn.min() >= 0, drawn.max() < rows) == (True, True)
    if drawn.ndim and drawn.size > 1:
        assert extremes(drawn) == (0, rows - 1)


def test_a_function_with_colocated_nodes_shows_its_tables(tensorflow: None, tmp_path: Path) -> None:
    import tensorflow as tf

    module = tf.Module()
    module.table = tf.Variable(tf.random.normal([30, 2]), name="table")

    def look_up(ids: tf.Tensor) -> tf.Tensor:
        shifted = ids + 1
        with tf.compat.v1.colocate_with(shifted):
            return tf.gather(module.table, tf.minimum(shifted, 29))

    inner = tf.function(look_up)
    outer = tf.function(lambda ids: {"rows": inner(ids)})
    signature = outer.get_concrete_function(ids=tf.TensorSpec([None], tf.int32))
    tf.saved_model.save(module, str(tmp_path / "model"), signature)
    with open_session(tmp_path / "model") as session:
        found, _ = find_made_up(session.signatures["serving_default"], ROWS, session)
        assert found is not None
        (table,) = count_touched(session, {"serving_default": found})
    assert extremes(found["ids"]) == (0, 29)
    assert (table.touched, table.rows) == (len(np.unique(np.minimum(found["ids"] + 1, 29))), 30)


def test_loops_over_rows_show_their_tables_but_no_count(tensorflow: None, tmp_path: Path) -> None:
    import tensorflow as tf

    module = tf.Module()
    module.tables = [tf.Variable(tf.random.normal([rows, 2]), name=f"table_{rows}") for rows in (30, 9, 20)]
    module.words = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(WORDS, [0, 1, 2]), -1)

    def look_up(pair: tf.Tensor, ids: tf.Tensor, words: tf.Tensor) -> dict[str, tf.Tensor]:
        first, second, third = module.tables
        rows = tf.map_fn(lambda one: tf.gather(first, one[0]) + tf.gather(second, one[1]), pair, tf.float32)
        moved = tf.scan(lambda _, one: tf.reverse(one, [0]), ids)
        keys = tf.map_fn(module.words.lookup, words, tf.int32)
        return {"rows": rows, "moved": tf.gather(third, moved), "keys": keys, "second": tf.gather(second, pair[:, 1])}

    specs = (
        tf.TensorSpec(shape, dtype)
        for shape, dtype in (([None, 2], tf.int32), ([None, 3], tf.int64), ([None, 1], tf.string))
    )
    signature = tf.function(look_up).get_concrete_function(*specs)
    tf.saved_model.save(module, str(tmp_path / "model"), signature)
    with open_session(tmp_path / "model") as session:
        found, reason = find_made_up(session.signatures["serving_default"], ROWS, session)
        assert found is not None, reason
        (table,) = count_touched(session, {"serving_default": found})
    assert [extremes(found["pair"][:, column]) for column in range(2)] == [(0, 29), (0, 8)]
    assert extremes(found["ids"]) == (0, 19)
    assert {WORDS[0].encode(), b"tpuserve"} < set(found["words"].flat)
    assert (table.touched, table.rows) == (len(np.unique(found["pair"][:, 1])), 9)


def test_a_loop_of_tensorflow_1_shows_its_table_but_no_count(tensorflow: None, tmp_path: Path) -> None:
    import tensorflow as tf

    v1 = tf.compat.v1
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default(), v1.Session() as session:
            pair = v1.placeholder(tf.int32, [None, 2], "pair")
            first, second = (
                v1.get_variable(name, [rows, 2], use_resource=False) for name, rows in (("a", 30), ("b", 9))
            )
            looped = tf.map_fn(lambda row: tf.gather(first, row), pair, tf.float32)
            rows = tf.reduce_sum(looped, 1) + tf.gather(second, pair[:, 0])
            session.run(v1.global_variables_initializer())
            v1.saved_model.simple_save(session, str(tmp_path / "model"), {"pair": pair}, {"rows": rows})
    finally:
        v1.enable_control_flow_v2()
    with open_session(tmp_path / "model") as served:
        found, reason = find_made_up(served.signatures["serving_default"], ROWS, served)
        assert found is not None, reason
        tables = count_touched(served, {"serving_default": found})
    assert [extremes(found["pair"][:, column]) for column in range(2)] == [(0, 8), (0, 29)]
    assert [(one.name, one.touched, one.rows) for one in tables] == [("b", len(np.unique(found["pair"][:, 0])), 9)]
