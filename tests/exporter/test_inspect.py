"""Tests for `tpuserve inspect` on paths of every kind, including damaged and missing files."""

import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.exporter import builders
from tests.exporter.conftest import Finished
from tpuserve_exporter import export
from tpuserve_exporter.command.inspecting import command

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group(__name__)]

TORCH_FILE = Path(__file__).with_name("data") / "torch_training.pt"


@dataclass(frozen=True, slots=True)
class Inspected(Finished):
    def names(self, part: str = "model") -> dict[str, tuple[str, list[int]]]:
        return {one["name"]: (one["dtype"], one["shape"]) for one in self.document["variables"] if one["part"] == part}


def inspect(*arguments: object) -> Inspected:
    done = CliRunner().invoke(command, [str(argument) for argument in arguments], standalone_mode=False)
    assert done.exception is None, done.exception
    return Inspected(done.return_value, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def version(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Publish `builders.tiny`."""
    base = tmp_path_factory.mktemp("versions") / "tiny"
    return Path(export(builders.tiny(), base, batch_sizes=(1, 2), progress=False).path or "")


@pytest.fixture
def copied(version: Path, tmp_path: Path) -> Path:
    """Copy a version, for tests that damage it."""
    shutil.copytree(version, tmp_path / "tiny" / "1")
    return tmp_path / "tiny" / "1"


def test_a_published_version_tells_its_signatures_variables_and_proof(version: Path) -> None:
    found = inspect(version, "--json")
    assert found.code == 0
    document = found.document
    assert (document["ok"], document["kind"], document["problems"]) == (True, "exported version", [])
    assert document["signatures"]["serving_default"]["inputs"] == {"features": {"dtype": "float32", "shape": [None, 3]}}
    assert found.names()["hidden/kernel"] == ("float32", [3, 4])
    assert document["variables_bytes"] == 4 * (3 * 4 + 4 + 4 * 2 + 2)
    assert document["operations"]["counts"]["MatMul"] == 2
    assert "SaveV2" not in document["operations"]["counts"]
    assert (document["operations"]["host"], document["operations"]["tpu"]) == ({}, {})
    assert document["manifest"]["parity"]["max_abs_difference"] == 0.0
    assert document["facts"]["aliases"] == "tpu_func"


def test_a_base_directory_tells_its_newest_version_in_tables(version: Path) -> None:
    found = inspect(version.parent)
    assert found.code == 0
    for expected in (
        "exported version", "1; this output is for 1",
        "serving_default(features: float32[?, 3]) -> scores: float32[?, 2]",
        "hidden/kernel", "float32[3, 4]", "largest difference", "top-1 100 %", "batch sizes of serving_default",
    ):  # fmt: skip
        assert expected in found.out, expected


def test_a_training_checkpoint_tells_model_and_optimizer_apart(tiny_checkpoint: Path) -> None:
    for path in (tiny_checkpoint, tiny_checkpoint / "ckpt-7", tiny_checkpoint / "ckpt-7.index"):
        found = inspect(path, "--json")
        assert (found.code, found.document["kind"], found.document["name"]) == (0, "TF2 checkpoint", "ckpt-7")
    assert found.names() == {
        "hidden/kernel": ("float32", [3, 4]), "hidden/bias": ("float32", [4]),
        "scores/kernel": ("float32", [4, 2]), "scores/bias": ("float32", [2]),
    }  # fmt: skip
    assert "adam/hidden_kernel_momentum" in found.names("optimizer")
    assert found.names("other")["step"] == ("int64", [])


def test_variables_apart_are_listed_on_request(tiny_checkpoint: Path) -> None:
    assert "adam/hidden_kernel_momentum" not in inspect(tiny_checkpoint).out
    assert "adam/hidden_kernel_momentum" in inspect(tiny_checkpoint, "--all").out


def test_a_tpu_graph_tells_its_tpu_operations_and_where_it_could_be_cut(tensorflow: None, tmp_path: Path) -> None:
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        session.run(v1.get_variable("dense/kernel", [3, 2], use_resource=True).initializer)
        session.run(v1.get_variable("beta1_power", initializer=0.9).initializer)
        v1.train.Saver().save(session, str(tmp_path / "model.ckpt-5"), write_meta_graph=False)
    with tf.Graph().as_default() as graph:  # no kernel exists for it in a session
        images = v1.placeholder(tf.float32, [None, 3], "images")
        replicated = tf.raw_ops.TPUReplicatedInput(inputs=[images], name="replicated")
        weights = v1.get_variable("dense/kernel", [3, 2], use_resource=True)
        tf.io.decode_base64(v1.placeholder(tf.string, [None], "text"))
        tf.raw_ops.TPUReplicatedOutput(input=tf.matmul(replicated, weights), num_replicas=1, name="answers")
        v1.train.export_meta_graph(str(tmp_path / "model.ckpt-5.meta"), graph=graph)
    found = inspect(tmp_path / "model.ckpt-5.meta", "--json")
    document = found.document
    assert (found.code, document["kind"]) == (0, "TF1 graph (.meta)")
    assert document["operations"]["tpu"] == {"TPUReplicatedInput": 1, "TPUReplicatedOutput": 1}
    assert "DecodeBase64" in document["operations"]["host"]
    assert "MatMul" not in document["operations"]["host"]
    assert document["facts"]["Placeholder"] == "images, text"
    assert document["facts"]["TPUReplicatedInput"] == "replicated"
    assert found.names() == {"dense/kernel": ("float32", [3, 2])}
    assert found.names("optimizer") == {"beta1_power": ("float32", [])}
    assert inspect(tmp_path / "model.ckpt-5", "--json").document["kind"] == "TF1 checkpoint"
    (tmp_path / "model.ckpt-5.index").unlink()
    alone = inspect(tmp_path / "model.ckpt-5.meta", "--json")
    assert (alone.code, alone.names()) == (6, {"dense/kernel": ("float32", [3, 2])})
    assert alone.document["problems"] == ["no checkpoint next to it: model.ckpt-5.index is missing"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from Keras' HDF5 code
def test_keras_files_are_read_as_data(tensorflow: None, tmp_path: Path) -> None:
    import keras

    model = keras.Sequential([keras.Input((3,), name="x"), keras.layers.Lambda(lambda x: x), keras.layers.Dense(2)])
    for name, kind in (("m.keras", "Keras model"), ("m.h5", "Keras model (HDF5)"), ("m.weights.h5", "Keras weights")):
        if name == "m.weights.h5":
            model.save_weights(tmp_path / name)
        else:
            model.save(tmp_path / name)
        found = inspect(tmp_path / name, "--json")
        assert (found.code, found.document["kind"]) == (0, kind)
        assert ("float32", [3, 2]) in found.names().values()
        assert bool(found.document["notes"]) == (name != "m.weights.h5")
    assert inspect(tmp_path / "m.keras", "--json").document["facts"]["input x"] == "float32[?, 3]"


def test_an_orbax_checkpoint(tensorflow: None, tmp_path: Path) -> None:
    checkpoints = pytest.importorskip("orbax.checkpoint")
    dense = {"dense": {"kernel": np.ones((3, 2), np.float32)}}
    kept = {"count": np.int32(1), "ema": dense}
    tree = {"params": dense, "opt_state": {"mu": np.ones(2, np.float32)}, "kept": kept, "ema_params": dense}
    tree["step"] = np.int32(7)
    with checkpoints.StandardCheckpointer() as saver:
        saver.save(tmp_path.resolve() / "saved", tree)
    found = inspect(tmp_path / "saved", "--json")
    assert (found.code, found.document["kind"]) == (0, "Orbax checkpoint")
    assert found.names() == {"params/dense/kernel": ("float32", [3, 2])}
    assert found.names("optimizer").keys() == {"opt_state/mu", "kept/count", "kept/ema/dense/kernel"}
    assert found.names("average").keys() == {"ema_params/dense/kernel"}
    assert found.names("other").keys() == {"step"}


def test_a_torch_file_is_read_without_torch() -> None:
    found = inspect(TORCH_FILE, "--json")
    assert (found.code, found.document["kind"], found.document["notes"]) == (0, "PyTorch file", [])
    assert found.names()["model/0.weight"] == ("float32", [3, 4])
    assert found.names()["half"] == ("bfloat16", [2])
    assert found.names()["model/1.num_batches_tracked"] == ("int64", [])
    assert "optimizer/state/0/exp_avg" in found.names("optimizer")


class RunsCode:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.system, (f"touch {self._path}",)


def test_code_in_a_torch_file_is_named_and_not_run(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "evil.pt", "w") as archive:
        archive.writestr("evil/data.pkl", pickle.dumps({"w": RunsCode(tmp_path / "ran")}))
    found = inspect(tmp_path / "evil.pt", "--json")
    assert found.code == 0
    assert found.document["notes"] == ["reading it as a pickle imports and runs: posix.system"]
    assert not (tmp_path / "ran").exists()


def test_a_torch_program_tells_its_signature(tmp_path: Path) -> None:
    meta = {"dtype": 7, "sizes": [{"as_expr": {"expr_str": "s0"}}, {"as_int": 4}]}
    program = {
        "graph_module": {
            "graph": {
                "nodes": [{"target": "torch.ops.aten.linear.default"}],
                "tensor_values": {"x": meta, "y": meta | {"dtype": 13}},
            },
            "signature": {
                "input_specs": [{"parameter": {}}, {"user_input": {"arg": {"as_tensor": {"name": "x"}}}}],
                "output_specs": [{"user_output": {"arg": {"as_tensor": {"name": "y"}}}}],
            },
        }
    }
    weights = {"config": {"0.weight": {"tensor_meta": {"dtype": 7, "sizes": [{"as_int": 3}, {"as_int": 4}]}}}}
    with zipfile.ZipFile(tmp_path / "m.pt2", "w") as archive:
        archive.writestr("m/models/model.json", json.dumps(program))
        archive.writestr("m/data/weights/model_weights_config.json", json.dumps(weights))
    found = inspect(tmp_path / "m.pt2", "--json")
    assert found.document["signatures"]["forward"]["outputs"] == {"y": {"dtype": "bfloat16", "shape": [None, 4]}}
    assert found.names() == {"0.weight": ("float32", [3, 4])}
    assert found.document["operations"]["counts"] == {"aten.linear.default": 1}


def test_safetensors_by_itself_in_parts_and_cut_short(tmp_path: Path) -> None:
    header = json.dumps(
        {"__metadata__": {"format": "pt"}, "w": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}
    ).encode()
    full = struct.pack("<Q", len(header)) + header + bytes(8)
    (tmp_path / "a.safetensors").write_bytes(full)
    (tmp_path / "b.safetensors").write_bytes(full[:-3])
    weight_map = {"w": "a.safetensors", "v": "gone.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    found = inspect(tmp_path / "a.safetensors", "--json")
    assert (found.code, found.names(), found.document["facts"]) == (0, {"w": ("bfloat16", [2, 2])}, {"format": "pt"})
    cut = inspect(tmp_path / "b.safetensors")
    assert cut.code == 6
    assert "✗ b.safetensors is truncated: it has 5 of 8 bytes of data" in cut.out
    parts = inspect(tmp_path, "--json")
    assert (parts.code, parts.names()) == (6, {"w": ("bfloat16", [2, 2])})
    assert parts.document["problems"] == ["gone.safetensors is missing; model.safetensors.index.json lists it"]


def test_damage_of_a_version_is_told(copied: Path) -> None:
    data = copied / "variables/variables.data-00000-of-00001"
    full = data.read_bytes()
    data.write_bytes(bytes([full[0] ^ 1]) + full[1:])
    assert inspect(copied).code == 0
    verified = inspect(copied, "--verify")
    assert verified.code == 6
    assert "variables.data-00000-of-00001 has changed since it was published: its sha256 differs" in verified.out
    data.write_bytes(full[:20])
    assert f"has 20 bytes; the manifest states {len(full)}" in inspect(copied).out
    data.unlink()
    found = inspect(copied, "--json")
    assert found.code == 6
    assert "no data: variables.data-* is missing" in found.document["problems"]


def test_a_missing_shard_is_told(tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "ckpt-7.index").write_bytes((tiny_checkpoint / "ckpt-7.index").read_bytes())
    data = (tiny_checkpoint / "ckpt-7.data-00000-of-00001").read_bytes()
    (tmp_path / "ckpt-7.data-00000-of-00001").write_bytes(data[:100])
    cut = inspect(tmp_path / "ckpt-7.index")
    assert cut.code == 6
    assert "the data" in cut.out + cut.err
    (tmp_path / "ckpt-7.data-00000-of-00001").unlink()
    gone = inspect(tmp_path)
    assert gone.code == 6
    assert "ckpt-7" in gone.out + gone.err


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("cut/saved_model.pb", b"\x08\x01\x12\xff\xff", "cannot read cut/saved_model.pb: it is truncated"),
        ("empty/saved_model.pb", b"", "saved_model.pb contains no graph: it is empty or truncated"),
        ("m.meta", b"\x0a\xff\xff", "m.meta is damaged or not a MetaGraphDef"),
        ("m.keras", b"PK no archive", "m.keras is damaged or not a Keras file"),
        ("m.h5", b"no HDF5", "m.h5 is damaged or not a Keras file"),
        ("m.pt", b"\x80\x02no pickle", "m.pt is damaged or in torch's format from before 1.6"),
        ("m.pt2", b"no archive", "m.pt2 is damaged or not written by torch.export.save"),
        ("m.safetensors", b"\x05\0\0\0\0\0\0\0{no}!", "m.safetensors is damaged or not a safetensors file"),
        ("ckpt.index", b"no index", "cannot read ckpt.index"),
        ("notes.txt", b"", "cannot inspect notes.txt"),
        ("folder/notes.txt", b"", "contains no checkpoint, no SavedModel and no versions"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(
    tensorflow: None, tmp_path: Path, name: str, content: bytes, expected: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    target = path.parent if "/" in name else path
    found = inspect(target)
    assert found.code == 6
    assert found.err.startswith("error: ")
    assert expected in found.err
    assert found.err.count("\n") == 1
    document = inspect(target, "--json").document
    assert (document["ok"], document["kind"], document["exit_code"]) == (False, "SourceUnreadable", 6)


def test_the_program_is_quick_to_help_and_quiet(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("tpuserve-inspect")
    started = [program] if program.exists() else [sys.executable, "-m", "tpuserve_exporter.command.inspecting"]
    done = subprocess.run([*started, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: tpuserve inspect [OPTIONS] PATH")
    gone = subprocess.run([*started, tmp_path / "nowhere"], capture_output=True, text=True, check=False)
    assert (gone.returncode, gone.stdout) == (6, "")
    assert gone.stderr == f"error: {tmp_path}/nowhere does not exist\n"
