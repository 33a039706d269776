"""Tests for `tpuserve export --batching in-graph`: concurrent calls share a run of the device part."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.exporter import builders
from tests.exporter.conftest import Finished
from tests.exporter.written_graph import nodes, read_meta_graph

pytestmark = [
    pytest.mark.xdist_group(__name__),
    # Keras 3.15 passes its variables to h5py, and numpy 2 warns about it.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

Export = Callable[..., Finished]
IN_GRAPH = ("--batching", "in-graph")


def test_the_device_part_is_what_is_batched(export: Export, tensorflow: None, tmp_path: Path) -> None:
    model = builders.tiny()
    model.save(tmp_path / "tiny.keras")
    signatures = ("--signature", "serving_default=tensor", "--signature", "examples=tf_example")
    tuned = ("--batch-threads", "3", "--batch-timeout-us", "500", "--batch-queue", "7", "--batch-sizes", "2,4")
    finished = export(tmp_path / "tiny.keras", tmp_path / "m", *signatures, *IN_GRAPH, *tuned)
    assert finished.code == 0, finished.err
    meta_graph = read_meta_graph(tmp_path / "m/1")
    [device] = meta_graph.meta_info_def.function_aliases
    batching = [node for node in nodes(meta_graph) if node.op == "BatchFunction"]
    assert len(batching) >= 2  # at least one per signature
    for node in batching:
        settings = (node.attr[name].i for name in ("num_batch_threads", "batch_timeout_micros", "max_enqueued_batches"))
        assert (*settings, list(node.attr["allowed_batch_sizes"].list.i)) == (3, 500, 7, [2, 4])
        batched = next(f for f in meta_graph.graph_def.library.function if f.signature.name == node.attr["f"].func.name)
        assert any(attr.func.name == device for one in batched.node_def for attr in one.attr.values())

    rows = np.random.default_rng(0).random((24, 3)).astype(np.float32)
    expected = model(rows).numpy()
    loaded = tf.saved_model.load(str(tmp_path / "m/1")).signatures["serving_default"]
    with ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(lambda row: loaded(tf.constant(row[None]))["scores"].numpy(), rows))
    np.testing.assert_allclose(np.concatenate(answers), expected, atol=1e-6)
    # The graph splits more rows than the largest batch instead of rejecting them.
    np.testing.assert_allclose(loaded(tf.constant(rows[:9]))["scores"].numpy(), expected[:9], atol=1e-6)


@pytest.mark.parametrize(
    ("build", "flags", "message"),
    [
        (
            builders.row_dependent,
            IN_GRAPH,
            "joins rows of several calls, and a row of serving_default depends on the batch size",
        ),
        (builders.fixed_batch, IN_GRAPH, "not every input and output has rows"),
        (builders.free_width, IN_GRAPH, "all other dimensions need a fixed size"),
        (builders.tiny, ("--batch-queue", "3"), "--batch-queue needs --batching in-graph"),
    ],
)
def test_what_cannot_be_batched_is_refused(
    export: Export, tmp_path: Path, build: Callable[[], object], flags: tuple[str, ...], message: str
) -> None:
    build().save(tmp_path / "model.keras")  # type: ignore[attr-defined]  # keras is untyped
    finished = export(tmp_path / "model.keras", tmp_path / "m", *flags)
    assert (finished.code, message in finished.err) == (2, True), finished.err
    assert not (tmp_path / "m").exists()
