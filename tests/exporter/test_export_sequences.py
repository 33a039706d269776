"""Tests for `tpuserve export --sequence-buckets`: its checks, its files, and their use by the server."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.exporter.conftest import Finished, read_manifest
from tests.support.saved_models import save_function, save_mlp
from tests.support.sequence_models import save_tagger

pytestmark = [pytest.mark.xdist_group(__name__)]

Export = Callable[..., Finished]


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tagger(tmp_path_factory.mktemp("tagger") / "saved", mask=True)


def test_checked_buckets_are_in_the_manifest_with_what_pads(export: Export, tagger: Path, tmp_path: Path) -> None:
    finished = export(
        tagger,
        tmp_path / "m",
        "--batch-sizes",
        "1,2",
        "--sequence-buckets",
        "4,16",
        "--pad-value",
        "ids=3",
        "--verbose",
    )
    assert finished.code == 0, finished.err
    assert "Check that padding does not change serving_default" in finished.out
    entry = read_manifest(tmp_path / "m/1")["signatures"]["serving_default"]
    assert entry["sequence_buckets"] == [4, 16]
    described = {"dtype": "int32", "shape": [None, None], "tried_sizes": [[1, 4], [4, 16]]}
    assert entry["inputs"] == {"ids": {**described, "pad_value": 3}, "mask": described}


def test_a_model_that_padding_changes_is_not_published(export: Export, tmp_path: Path) -> None:
    mean = save_function(
        tmp_path / "saved",
        lambda ids: {"y": tf.reduce_mean(tf.cast(ids, tf.float32), axis=1)},
        tf.TensorSpec([None, None], tf.int32, "ids"),
    )
    finished = export(mean, tmp_path / "m", "--sequence-buckets", "16")
    assert finished.code == 3
    assert "rows padded to 16: output 'y' differs by up to" in finished.err
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--pad-value", "ids=1"), "--pad-value needs --sequence-buckets"),
        (("--sequence-buckets", "8", "--pad-value", "ids"), "is not of the form NAME=VALUE"),
        (("--sequence-buckets", "8", "--pad-value", "ids=[1]"), "the value is neither a number nor text"),
        (("--sequence-buckets", "8", "--pad-value", "ids=NaN"), "the value is neither a number nor text"),
        (("--sequence-buckets", "8", "--pad-value", "id=1"), "These inputs have one: ids, mask"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    export: Export, tagger: Path, tmp_path: Path, flags: tuple[str, ...], message: str
) -> None:
    finished = export(tagger, tmp_path / "m", *flags)
    assert finished.code == 2
    assert message in finished.err


def test_a_model_without_sequences_is_refused(export: Export, tmp_path: Path) -> None:
    finished = export(save_mlp(tmp_path / "saved"), tmp_path / "m", "--sequence-buckets", "16")
    assert finished.code == 2
    assert "--sequence-buckets applies to no signature: no input has a free dimension" in finished.err


@pytest.mark.parametrize("flag", ["--check", "--warmup"])
def test_inputs_longer_than_the_last_bucket_are_refused(
    export: Export, tagger: Path, tmp_path: Path, flag: str
) -> None:
    ones = np.ones((2, 9), np.int32)
    np.savez(tmp_path / "long.npz", ids=ones, mask=ones)
    finished = export(tagger, tmp_path / "m", "--sequence-buckets", "4,8", flag, tmp_path / "long.npz")
    assert finished.code == 9
    assert (
        f"{flag}: input 'ids' of serving_default is 9 long, but the largest of --sequence-buckets is 8" in finished.err
    )
