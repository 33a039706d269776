"""Tests for trees in Flax files, zarr directories and .npz files: their arrays, their detection and their damage."""

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from flax import serialization

from tpuserve_exporter.errors import ExportError, SourceUnreadable, UnsafeSource
from tpuserve_exporter.inspection.look import inspect
from tpuserve_exporter.models.tree_path import KeyPath
from tpuserve_exporter.sources.kinds import detect
from tpuserve_exporter.sources.trees import msgpack_index
from tpuserve_exporter.sources.trees.flax_file import FlaxTree
from tpuserve_exporter.sources.trees.npz_file import NpzTree
from tpuserve_exporter.sources.trees.stored_tree import StoredTree
from tpuserve_exporter.sources.trees.zarr_directory import ZarrTree

pytestmark = [pytest.mark.xdist_group(__name__)]

TREE: dict[str, Any] = {
    "params": {
        "dense": {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.ones(3, ml_dtypes.bfloat16)},
        "layers": {"0": np.array([1, -1], np.int8), "1": np.zeros((0, 2), np.float16)},
    },
    "step": 300,
    "rate": 0.5,
    "done": True,
    "phase": 1 - 2j,
    "name": "run",
    "none": None,
}
KERNEL: KeyPath = ("params", "dense", "kernel")


def check(tree: StoredTree, prefix: KeyPath = ()) -> None:
    """Check the arrays of TREE, with numbers only if the format has them."""
    values = tree.read({path for path in tree.arrays if path[: len(prefix)] == prefix})
    for path, expected in (
        (("dense", "kernel"), TREE["params"]["dense"]["kernel"]),
        (("dense", "bias"), TREE["params"]["dense"]["bias"]),
        (("layers", "0"), TREE["params"]["layers"]["0"]),
    ):
        found, spec = values[*prefix, *path], tree.arrays[*prefix, *path]
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert (spec.dtype, spec.shape) == (expected.dtype.name, expected.shape)
        np.testing.assert_array_equal(found, expected)


@pytest.fixture
def flax_file(tmp_path: Path) -> Path:
    (tmp_path / "model.msgpack").write_bytes(serialization.to_bytes(TREE))
    return tmp_path / "model.msgpack"


def test_a_file_of_flax_is_indexed_and_read(flax_file: Path) -> None:
    tree = FlaxTree(flax_file)
    check(tree, ("params",))
    assert detect(flax_file) == "flax"
    numbers = {path[-1]: tree.read([path])[path].item() for path in tree.arrays if len(path) == 1}
    assert numbers == {"step": 300, "rate": 0.5, "done": True, "phase": 1 - 2j}
    assert inspect(flax_file).arrays[0].name == "params/dense/kernel"


def test_chunks_of_a_large_array_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", 8)
    (tmp_path / "checkpoint_7").write_bytes(serialization.to_bytes(TREE))
    tree = FlaxTree(tmp_path)
    check(tree, ("params",))
    assert (tree.name, tree.step) == (f"{tmp_path.name}/checkpoint_7", 7)
    assert not any("chunk" in key for path in tree.arrays for key in path)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "uint64", "complex64", "bool"])
def test_every_dtype_keeps_its_bytes(tmp_path: Path, dtype: str) -> None:
    values = np.arange(4).reshape(2, 2).astype(np.dtype(dtype))
    (tmp_path / "x.msgpack").write_bytes(serialization.to_bytes({"x": values, "y": values[0, 0]}))
    tree = FlaxTree(tmp_path / "x.msgpack")
    np.testing.assert_array_equal(tree.read([("x",)])["x",], values)
    assert tree.arrays["y",].shape == ()


@pytest.mark.parametrize("size", [0, 1, 5, 40, 100, 200])
def test_a_truncated_file_is_unreadable_and_says_where(flax_file: Path, size: int) -> None:
    flax_file.write_bytes(flax_file.read_bytes()[:size])
    with pytest.raises(SourceUnreadable, match=r"cannot read model.msgpack as a file of Flax: .* Copy the file again"):
        FlaxTree(flax_file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xdf\xff\xff\xff\xff\xa1a\x01", "an item needs 9 bytes"),
        (b"\x81\xa1a\xc9\xff\xff\xff\xff\x01", "but an item needs"),
        (b"\x81\xa1a\xc7\x0b\x01\x93\x91\x02\xa5int64\xc4\x00", "is int64\\[2\\], but has 0 byte"),
        (b"\x81\xa1a\xc7\x0b\x01\x93\x91\x02\xa4none\xc4\x00\x00", "unknown dtype 'none'"),
        (b"\x81\xa1a\xc1", "not an item of MessagePack"),
        (b"\x81\xa1a\x01\x01", "1 byte\\(s\\) follow the tree"),
        (b"\x81\xa1a" * 1000 + b"\x01", "nested deeper than"),
        (b"\x81\xa1a\xd4\x05\x00", "type 5, which Flax does not write"),
    ],
)
def test_a_damaged_file_allocates_nothing_and_says_what_is_wrong(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.msgpack").write_bytes(content)
    with pytest.raises(SourceUnreadable, match=message):
        FlaxTree(tmp_path / "x.msgpack")


def test_bytes_in_any_order_raise_nothing_else(flax_file: Path, tmp_path: Path) -> None:
    whole, random = flax_file.read_bytes(), np.random.default_rng(3)
    for _ in range(1000):
        content = bytearray(whole)
        for place in random.integers(0, len(content), 3):
            content[place] = random.integers(256)
        flax_file.write_bytes(content)
        try:
            tree = FlaxTree(flax_file)
            tree.read(list(tree.arrays))
        except SourceUnreadable:
            pass


def write_zarr(path: Path, value: Any) -> dict[str, Any]:  # noqa: ANN401 - an array
    import tensorstore

    spec: dict[str, Any] = {
        "driver": "zarr", "dtype": value.dtype.name, "kvstore": {"driver": "file", "path": str(path)},
        "metadata": {"shape": list(value.shape), "chunks": [1] * value.ndim, "compressor": {"id": "gzip"}},
    }  # fmt: skip
    tensorstore.open(spec, create=True, open=True).result().write(value).result()
    spec["kvstore"]["path"] = f"{path.name}/"
    return spec


def save_t5x(folder: Path) -> None:
    dense, layers = TREE["params"]["dense"], TREE["params"]["layers"]
    target = {"dense": {"kernel": write_zarr(folder / "target.dense.kernel", dense["kernel"]), "bias": dense["bias"]}}
    state = {"step": np.int32(9), "param_states": {"dense": {"kernel": {"v": dense["kernel"]}}}}
    tree = {"version": 3, "optimizer": {"target": {**target, "layers": layers}, "state": state}}
    (folder / "checkpoint").write_bytes(serialization.msgpack_serialize(tree))


def save_orbax_aggregate(folder: Path) -> None:
    dense, layers = TREE["params"]["dense"], TREE["params"]["layers"]
    write_zarr(folder / "target.dense.kernel", dense["kernel"])
    dense = {"kernel": "PLACEHOLDER://target.dense.kernel", "bias": dense["bias"]}
    tree = {"target": {"dense": dense, "layers": layers}}
    (folder / "checkpoint").write_bytes(serialization.msgpack_serialize(tree))


def save_names(folder: Path, separator: str = ".") -> None:
    for group, leaves in TREE["params"].items():
        for name, value in leaves.items():
            write_zarr(folder / separator.join(("target", group, name)), np.asarray(value))


@pytest.mark.parametrize(
    "save",
    [save_t5x, save_orbax_aggregate, save_names, lambda folder: save_names(folder, "~")],
    ids=["T5X", "old Orbax", "PaxML", "big_vision"],
)
@pytest.mark.parametrize("part", ["checkpoint_20", "checkpoint_20/state"])
def test_zarr_directories_are_one_tree(tmp_path: Path, save: Callable[[Path], None], part: str) -> None:
    (tmp_path / "checkpoint_9").mkdir()
    (tmp_path / part).mkdir(parents=True)
    save(tmp_path / part)
    for source in (tmp_path, tmp_path / "checkpoint_20"):
        tree = ZarrTree(source)
        check(tree, ("target",))
        assert tree.step == 20
        assert detect(source) == "zarr"
        assert len(inspect(source).arrays) == len(tree.arrays)


def test_missing_files_of_zarr_are_not_read_as_zeros(tmp_path: Path) -> None:
    save_names(tmp_path)
    (tmp_path / "target.dense.kernel/1.2").unlink()
    tree = ZarrTree(tmp_path)
    tree.read([("target", "dense", "bias")])
    with pytest.raises(SourceUnreadable, match=r"target.dense.kernel lacks 1 of its 6 file\(s\): 1.2. Copy the"):
        tree.read([("target", "dense", "kernel")])
    (tmp_path / "target.dense.kernel/1.2").write_bytes(b"x")
    with pytest.raises(SourceUnreadable, match=r"cannot read target.dense.kernel: .* Copy the directory again"):
        tree.read([("target", "dense", "kernel")])
    (tmp_path / "target.dense.kernel/.zarray").write_text("{")
    with pytest.raises(SourceUnreadable, match=r"cannot read target.dense.kernel/.zarray"):
        ZarrTree(tmp_path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_names_of_an_archive_are_paths(tmp_path: Path, save: Callable[..., None]) -> None:
    flat = {f"params/{group}/{name}": value for group, all_ in TREE["params"].items() for name, value in all_.items()}
    save(tmp_path / "model.npz", **flat, labels=np.array(["cat", "dog"]))
    tree = NpzTree(tmp_path / "model.npz")
    check(tree, ("params",))
    assert ("labels",) not in tree.arrays
    assert detect(tmp_path / "model.npz") == "npz"
    assert inspect(tmp_path / "model.npz").arrays[0].shape == (2, 3)


@pytest.mark.parametrize("size", [0, 30, 300])
def test_a_truncated_archive_is_unreadable(tmp_path: Path, size: int) -> None:
    np.savez(tmp_path / "model.npz", kernel=np.ones((9, 9)))
    (tmp_path / "model.npz").write_bytes((tmp_path / "model.npz").read_bytes()[:size])
    with pytest.raises(SourceUnreadable, match=r"cannot read model.npz as an .npz file: .* Copy the file again"):
        NpzTree(tmp_path / "model.npz")


def test_an_array_larger_than_its_entry_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "small.npz", kernel=np.ones((2, 2)))
    with zipfile.ZipFile(tmp_path / "small.npz") as archive:
        entry = archive.read("kernel.npy").replace(b"(2, 2)", b"(9,99)")
    with zipfile.ZipFile(tmp_path / "model.npz", "w") as archive:
        archive.writestr("kernel.npy", entry)
    with pytest.raises(SourceUnreadable, match=r"kernel.npy does not have the size of its shape, \[9, 99\]"):
        NpzTree(tmp_path / "model.npz")


def test_files_of_one_directory_are_the_latest_step_or_have_to_be_named(tmp_path: Path) -> None:
    for step in (9, 10):
        (tmp_path / f"checkpoint_{step}").write_bytes(serialization.to_bytes({"w": np.full(1, step)}))
    assert detect(tmp_path) == "flax"
    assert FlaxTree(tmp_path).read([("w",)])["w",].tolist() == [10]
    for name in ("a", "b"):
        (tmp_path / f"{name}.msgpack").write_bytes(serialization.to_bytes({"w": np.ones(1)}))
    with pytest.raises(SourceUnreadable, match=r"several files of Flax: a.msgpack, b.msgpack. Name one"):
        FlaxTree(tmp_path)


def test_shards_are_one_tree(tmp_path: Path) -> None:
    for name, part in TREE["params"].items():
        (tmp_path / f"{name}.msgpack").write_bytes(serialization.to_bytes({name: part}))
    weight_map = {"dense/kernel": "dense.msgpack", "dense/bias": "dense.msgpack", "layers/0": "layers.msgpack"}
    (tmp_path / "flax_model.msgpack.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert detect(tmp_path) == "flax"
    check(FlaxTree(tmp_path))
    (tmp_path / "dense.msgpack").unlink()
    with pytest.raises(SourceUnreadable, match=r"names dense.msgpack, which is missing"):
        FlaxTree(tmp_path)


def test_a_pickle_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "params.pkl").write_bytes(pickle.dumps({"w": 1}))
    for look in (detect, inspect):
        look_at: Callable[[Path], object] = look
        with pytest.raises(UnsafeSource, match=r"convert its tree of parameters to a Flax file"):
            look_at(tmp_path / "params.pkl")


def test_text_is_not_taken_for_a_file_of_flax(tmp_path: Path) -> None:
    for content in (b"", b"model_checkpoint_path: x", b"\x80", b"\x81\xff", b"\x90", b"{}", b"\x82\xa0", bytes(300)):
        (tmp_path / "checkpoint").write_bytes(content)
        assert not msgpack_index.looks_like_msgpack(tmp_path / "checkpoint")
        with pytest.raises(ExportError):
            detect(tmp_path / "checkpoint")
