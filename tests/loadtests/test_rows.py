"""Tests for rows of data of own scenarios."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tests.loadtests.recorded_logs import numbered, predict_entry, write_log
from tpuserve_formats.messages import official
from tpuserve_formats.tf_record import framed
from tpuserve_loadtests.requests.arrays import BadInput
from tpuserve_loadtests.requests.rows import Rows


def test_columns_of_csv_have_the_type_of_all_their_values(tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    file.write_text('\ufeffage,height,zip,name,gap\n41,1.8,007,Ada,1\n-3,2,10115,"Li, Wu",\n\n', encoding="utf-8")
    rows = Rows.from_csv(file)
    assert list(rows) == [
        {"age": 41, "height": 1.8, "zip": "007", "name": "Ada", "gap": "1"},
        {"age": -3, "height": 2.0, "zip": "10115", "name": "Li, Wu", "gap": ""},
    ]
    assert [type(value) for value in rows[1].values()] == [int, float, str, str, str]


def test_examples_become_arrays_by_feature(tmp_path: Path) -> None:
    example = official.Example()
    example.features.feature["ids"].int64_list.value.extend([3, 4])
    example.features.feature["score"].float_list.value.append(0.5)
    example.features.feature["text"].bytes_list.value.append(b"a")
    _ = example.features.feature["empty"]
    file = tmp_path / "examples.tfrecord"
    file.write_bytes(framed(example.SerializeToString()))
    (row,) = Rows.from_examples(file)
    assert {name: (array.dtype, array.tolist()) for name, array in row.items()} == {
        "ids": (np.int64, [3, 4]),
        "score": (np.float32, [0.5]),
        "text": (object, [b"a"]),
    }


@pytest.mark.parametrize("name", ["log.jsonl", "log"])
@pytest.mark.parametrize("typed", [True, False])
def test_recorded_requests_become_their_inputs(tmp_path: Path, name: str, typed: bool) -> None:
    entries = [predict_entry(numbered(2.0, rows=3), typed=typed), predict_entry(numbered(5.0), model="other")]
    rows = Rows.from_requests(write_log(tmp_path / name, entries), model="doubling")
    assert [{name: array.tolist() for name, array in row.items()} for row in rows] == [{"x": [[2.0] * 4] * 3}]
    with pytest.raises(BadInput, match="none for third"):
        Rows.from_requests(tmp_path / name, model="third")


def test_each_seed_has_its_order_and_each_pass_all_rows(tmp_path: Path) -> None:
    file = tmp_path / "n.csv"
    file.write_text("n\n" + "\n".join(map(str, range(20))))
    rows = Rows.from_csv(file)

    def first(count: int, seed: int) -> list[int]:
        return [row["n"] for row in islice(rows.shuffled(seed), count)]

    assert first(40, 1) == first(40, 1) != first(40, 2)
    one, two = first(40, 1)[:20], first(40, 1)[20:]
    assert sorted(one) == sorted(two) == list(range(20))
    assert one != two


@pytest.mark.parametrize(
    ("read", "content", "complaint"),
    [
        (Rows.from_csv, b"", "contains no rows"),
        (Rows.from_csv, b"a,b\n", "contains no rows"),
        (Rows.from_csv, b"a,b\n1,2\n3\n", "Row 3 has 1 values. The first line has 2 names."),
        (Rows.from_csv, b"a,a\n1,2\n", "must have a different name for each column"),
        (Rows.from_csv, b"\xff\xfe", "Cannot read"),
        (Rows.from_examples, b"not a record file", "Cannot read"),
        (Rows.from_examples, framed(b"\xff"), "Cannot read"),
        (Rows.from_examples, framed(b"")[:-2], "the last record is truncated"),
        (Rows.from_requests, framed(b""), "contains no predict request"),
    ],
)
def test_a_file_that_has_no_rows_is_refused(
    tmp_path: Path, read: Callable[[Path], Rows], content: bytes, complaint: str
) -> None:
    file = tmp_path / "data"
    file.write_bytes(content)
    with pytest.raises(BadInput, match=complaint) as raised:
        read(file)
    assert str(file.name) in str(raised.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    for read in (Rows.from_csv, Rows.from_examples, Rows.from_requests):
        with pytest.raises(BadInput, match="No such file"):
            read(tmp_path / "none")
