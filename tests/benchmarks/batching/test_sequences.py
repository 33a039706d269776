from pathlib import Path

import pytest

from benchmarks.batching.sequence_model import random_texts, write_model
from benchmarks.batching.sequences import ALONE, WAYS, measure


@pytest.mark.slow
def test_every_way_answers_every_text_as_it_is_answered_alone(tmp_path: Path) -> None:
    ways = measure(write_model(tmp_path / "texts" / "1"), random_texts(100), rounds=1)
    assert [way.name for way in ways] == list(WAYS)
    assert all(way.difference < 1e-4 for way in ways)
    assert next(way.difference for way in ways if way.name == ALONE) == 0
