"""Tests for reading .npz, TFRecord and CSV files batch by batch, and for files that do not fit."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.exporter.test_sample_files import write_records
from tpuserve_exporter.errors import SamplesUnfit
from tpuserve_exporter.terms.sample_rows import open_samples, scan_samples
from tpuserve_exporter.terms.signature import Array, Signature, TensorSpec

X = np.arange(21, dtype=np.float32).reshape(7, 3)
VECTOR = Signature("s", {"x": TensorSpec("float32", (None, 3))}, {})


def read(path: Path, keys: Sequence[str], rows: int) -> list[Array]:
    return [file.find("x", VECTOR) for file in scan_samples(path).batches(keys, rows, {})]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_read_a_batch_at_a_time(tmp_path: Path, save: object, order: str) -> None:
    assert callable(save)
    save(tmp_path / "a.npz", x=np.asfortranarray(X) if order == "F" else X, other=np.ones(2), label=np.arange(7))
    rows = scan_samples(tmp_path / "a.npz")
    assert (rows.keys, rows.count(["x", "label"])) == (("x", "other", "label"), 7)
    parts = read(tmp_path / "a.npz", ["x", "label"], 3)
    assert [len(part) for part in parts] == [3, 3, 1]
    np.testing.assert_array_equal(np.concatenate(parts), X)


def test_records_are_read_a_batch_at_a_time_and_number_their_rows(tmp_path: Path) -> None:
    path = write_records(tmp_path / "r", [{"x": row} for row in X] + [{"x": X[0, :2]}], "GZIP")
    rows = scan_samples(path)
    assert (rows.keys, rows.count([])) == (("x",), 8)
    *whole, last = rows.batches([], 3, {})
    np.testing.assert_array_equal(np.concatenate([file.find("x", VECTOR) for file in whole]), X[:6])
    with pytest.raises(SamplesUnfit, match=r"input 'x' is float32\[\?, 3\], but the file's rows have 2, 3 value"):
        last.find("x", VECTOR)
    with pytest.raises(SamplesUnfit, match="record 6 of r has no feature 'y'"):
        last.find("y", Signature("s", {"y": TensorSpec("float32", (None,))}, {}))


@pytest.mark.parametrize(
    ("header", "name"),
    [("x[0],x[1],x[2],y", "x"), ("y,a,b,c", "x")],
    ids=["named", "rest"],
)
def test_columns_of_csv_become_vectors(tmp_path: Path, header: str, name: str) -> None:
    cells = [[f"{one:g}" for one in row] for row in X]
    lines = [",".join([*row, "cat"] if header.endswith("y") else ["cat", *row]) for row in cells]
    (tmp_path / "c.csv").write_text("\ufeff" + "\n".join([header, *lines, "", ""]), encoding="utf-8")
    rows = scan_samples(tmp_path / "c.csv")
    assert rows.count([]) == 7
    files = list(rows.batches([], 4, {}))
    np.testing.assert_array_equal(np.concatenate([file.without(["y"]).find(name, VECTOR) for file in files]), X)
    assert files[1].find("y", Signature("s", {"y": TensorSpec("string", (None,))}, {})).tolist() == [b"cat"] * 3


def test_a_column_has_one_dtype_in_all_batches(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text('n,f,s\n1,2,3\n2,2,"a,b"\n3,2.5,c\n')
    [first, *_] = scan_samples(tmp_path / "c.csv").batches([], 1, {})
    specs = {
        "n": TensorSpec("int64", (None, 1)),
        "f": TensorSpec("float32", (None,)),
        "s": TensorSpec("string", (None,)),
    }
    found = {name: first.find(name, Signature("s", specs, {})) for name in specs}
    assert {name: value.dtype.kind for name, value in found.items()} == {"n": "i", "f": "f", "s": "S"}
    assert found["n"].shape == (1, 1)
    # The checks read CSV files too.
    assert open_samples(tmp_path / "c.csv", {}).find("s", Signature("s", specs, {})).tolist() == [b"3", b"a,b", b"c"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x,y\n", "c.csv contains no rows below its header"),
        ("", "the first line of c.csv has a column without a name. It must name each column once"),
        ("x,\n1,2\n", "the first line of c.csv has a column without a name"),
        ("x,x\n1,2\n", "the first line of c.csv has the name 'x' twice"),
        ("x,y\n1,2\n\n1\n", "line 4 of c.csv has 1 values, but the header names 2 columns"),
        ('x,y\n1,"2\n', "cannot read c.csv as CSV: unexpected end of data"),
        ("x[0],x[2]\n1,2\n", "the CSV file has 2 columns x[…], but no x[1]"),
    ],
)
def test_csv_files_that_cannot_be_read_are_explained(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "c.csv").write_text(content)
    with pytest.raises(SamplesUnfit) as refused:
        next(scan_samples(tmp_path / "c.csv").batches([], 1, {}))
    assert message in str(refused.value)


def test_columns_that_are_no_input_are_named(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("id,a,b,c\n1,2,3,4\n")
    [file] = scan_samples(tmp_path / "c.csv").batches([], 9, {})
    with pytest.raises(SamplesUnfit, match=r"takes 3 value\(s\) of a row. The 4 other column\(s\) are id, a, b, c"):
        file.find("x", VECTOR)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b,c\n1,2,3\n1,,3\n", "column 'b' of c.csv has an empty cell in row 1, but input 'x' is float32[?, 3]"),
        ("x[0],x[1],x[2]\n1,2,ten\n", "column 'x[2]' of c.csv has the text 'ten' in row 0, but input 'x' is float32"),
    ],
)
def test_cells_that_are_no_number_are_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "c.csv").write_text(content)
    with pytest.raises(SamplesUnfit) as refused:
        read(tmp_path / "c.csv", [], 9)
    assert str(refused.value).startswith(message)


def test_npz_files_that_cannot_be_read_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=X, y=np.arange(6), z=np.float32(1), none=np.zeros((0, 3)))
    rows = scan_samples(path)
    for keys, shapes in ((["x", "y"], "x [7, 3], y [6]"), (["z"], "z []"), (["none"], "none [0, 3]")):
        with pytest.raises(SamplesUnfit) as refused:
            rows.count(keys)
        assert str(refused.value).endswith(f"and at least one. The shapes in a.npz: {shapes}")
    np.savez(path, x=X, names=np.array([{}], object), allow_pickle=True)
    rows = scan_samples(path)
    assert rows.count(["x"]) == 7
    with pytest.raises(SamplesUnfit, match=r"array names of a\.npz has Python objects\. Save strings as"):
        rows.count(["names"])
    with zipfile.ZipFile(path, "w") as archive, archive.open("x.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<f4", "fortran_order": False, "shape": (7, 3)})
        member.write(X.tobytes()[:40])
    with pytest.raises(SamplesUnfit, match=r"cannot read a\.npz: it is truncated"):
        read(path, ["x"], 5)
    path.write_bytes(b"PK\x03\x04 and no archive")
    with pytest.raises(SamplesUnfit, match=r"cannot read a\.npz as an \.npz file: File is not a zip file"):
        scan_samples(path)
    np.save(tmp_path / "b.npy", X)
    with pytest.raises(SamplesUnfit, match=r"b\.npy is one array without a name"):
        scan_samples(tmp_path / "b.npy")
