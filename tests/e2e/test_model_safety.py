"""Tests that real servers refuse unsafe and unsigned versions by name, run nothing from them, and serve the others."""

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from tests.e2e.running_server import RunningServer, run_configured_server, run_server
from tests.support.device_programs import FOLDER, Part, read_manifest, write_device_manifest, write_programs
from tests.support.saved_models import as_text, save_function, save_mlp, write_manifest
from tpuserve_client import Client, State
from tpuserve_formats.manifest import SIGNATURE_FILE
from tpuserve_formats.signing.keys import write_key_pair

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group(__name__)]

TEXT = tf.TensorSpec([], tf.string, "text")
X = np.ones((1, 64), np.float32)
# File names that the attacks would write. They are on the module level, because tf.function reads them.
WRITTEN: list[str] = []


def read_secret(text: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": tf.io.read_file("/etc/passwd")}


def write_on_request(text: tf.Tensor) -> dict[str, tf.Tensor]:
    with tf.control_dependencies([tf.io.write_file(WRITTEN[0], text)]):
        return {"y": tf.identity(text)}


def print_on_request(text: tf.Tensor) -> dict[str, tf.Tensor]:
    tf.print("x", output_stream=f"file://{WRITTEN[0]}")
    return {"y": text}


def save_forged_text(path: Path) -> Path:
    """Save a model that prints to a file, as a text that Python's parser reads as a path of another scheme."""
    text = as_text(save_function(path, print_on_request, TEXT)) / "saved_model.pbtxt"
    content = text.read_text()
    text.write_text(content.replace('"file://', r'"\X66ile://'))
    assert text.read_text() != content
    return path


def save_write_at_load(path: Path) -> Path:
    """Save a model that writes a file during its initialisation, before any request."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None], "x")
        signature = tf.compat.v1.saved_model.signature_def_utils.predict_signature_def({"x": x}, {"y": x + 1})
        builder = tf.compat.v1.saved_model.Builder(str(path))
        write = tf.io.write_file(WRITTEN[0], "x", name="at_load")
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature}, main_op=write)
        builder.save()
    return path


def save_outside_asset(path: Path) -> Path:
    """Save a model whose asset is a file outside the version."""
    save_mlp(path)
    model = SavedModel.FromString((path / "saved_model.pb").read_bytes())
    model.meta_graphs[0].asset_file_def.add(filename="../../../../../../etc/passwd").tensor_info.name = "x:0"
    (path / "saved_model.pb").write_bytes(model.SerializeToString())
    return path


def save_program_with_call(path: Path) -> Path:
    """Save device programs that call `memcpy` of the process."""

    def double(x: jax.Array) -> tuple[jax.Array]:
        return (jax.ffi.ffi_call("memcpy", jax.ShapeDtypeStruct(x.shape, x.dtype))(x),)

    tensor = ("float32", (None, 2))
    harmless = Part(lambda x: (x * 2,), {"x": tensor}, {"y": tensor})
    write_programs(path, harmless, batch_sizes=(1,))
    checks = [export.DisabledSafetyCheck.platform(), export.DisabledSafetyCheck.custom_call("memcpy")]
    program = export.export(jax.jit(double), platforms=("tpu",), disabled_checks=checks)(jnp.ones((1, 2)))
    [file] = (path / FOLDER / "programs").rglob("*.jaxexport")
    file.write_bytes(program.serialize())
    manifest = read_manifest(path)
    write_device_manifest(path, manifest["signatures"], manifest["device"])
    return path


def config(folder: Path, *models: str) -> str:
    """Return the flag of a configuration that serves all versions of the models."""
    each = "".join(
        f'config {{ name: "{name}" base_path: "{folder / name}" model_platform: "tensorflow" '
        "model_version_policy { all {} } }"
        for name in models
    )
    (folder / "models.config").write_text(f"model_config_list {{ {each} }}")
    return f"--model_config_file={folder / 'models.config'}"


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("attacked")
    WRITTEN[:] = [str(folder / "written")]
    base = folder / "m"
    save_mlp(base / "1")
    save_function(base / "2", read_secret, TEXT)
    save_function(base / "3", write_on_request, TEXT)
    save_function(base / "4", print_on_request, TEXT)
    save_write_at_load(base / "5")
    save_outside_asset(base / "6")
    save_mlp(base / "7")
    (base / "7" / "saved_model.cpb").write_bytes(b"x")
    save_forged_text(base / "8")
    as_text(save_mlp(base / "9"))
    save_program_with_call(folder / "programs" / "1")
    flags = (config(folder, "m", "programs"), "--max_num_load_retries=0", "--device=cpu")
    with run_configured_server(folder / "log", *flags, model="m") as server:
        yield server
    assert not Path(WRITTEN[0]).exists()


@pytest.mark.parametrize(
    ("version", "named"),
    [
        (2, "this server refuses operations of the SavedModel: ReadFile (node ReadFile, function "),
        (3, "WriteFile (node WriteFile, function "),
        (4, "PrintV2 (node PrintV2, function "),
        (5, "WriteFile (node at_load) writes files"),
        (6, "its asset '../../../../../../etc/passwd' is outside the directory of assets"),
        (7, "this server cannot check saved_model.cpb"),
        (8, "PrintV2 (node PrintV2, function "),
    ],
)
def test_an_unsafe_version_fails_with_the_operation_and_the_flag(
    attacked: RunningServer, version: int, named: str
) -> None:
    state, error = attacked.final_states("m")[version]
    assert state is State.END
    assert named in error
    assert ("--allowed_ops=" in error) == (version not in (6, 7))


@pytest.mark.parametrize("version", [1, 9])
def test_the_safe_version_serves_next_to_them(attacked: RunningServer, version: int) -> None:
    assert attacked.final_states("m")[version] == (State.AVAILABLE, "")
    with Client(attacked.rest) as client:
        assert client.predict("m", {"x": X}, version=version).version == version


def test_device_programs_with_other_calls_are_refused(attacked: RunningServer) -> None:
    state, error = attacked.final_states("programs")[1]
    assert state is State.END
    assert "has custom calls that this server refuses: memcpy" in error
    assert error.endswith("--allowed_ops=memcpy (permanent: tried again when its files change)")


def test_an_operation_that_the_operator_allows_runs_and_is_shown(tmp_path: Path) -> None:
    save_function(tmp_path / "m" / "1", read_secret, TEXT)
    with run_server(tmp_path / "m", tmp_path / "log", "--allowed_ops=ReadFile,Other") as server:
        with Client(server.grpc) as client:
            answer = client.predict("m", {"text": np.array(b"x", object)})["y"]
        assert bytes(answer.item()) == Path("/etc/passwd").read_bytes()
        with urllib.request.urlopen(f"{server.rest}/v1/models") as response:
            (model,) = json.load(response)["models"]
        assert "with ReadFile by --allowed_ops)" in model["versions"][0]["notes"][0]


def test_check_config_names_the_operations(tmp_path: Path) -> None:
    save_function(tmp_path / "m" / "1", read_secret, TEXT)
    command = [program("serve"), f"--model_base_path={tmp_path / 'm'}", "--check_config"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode != 0
    assert "this server refuses operations of the SavedModel: ReadFile (node ReadFile" in checked.stdout


def program(name: str) -> str:
    return str(Path(sys.executable).with_name(f"tpuserve-{name}"))


def run(name: str, *arguments: object) -> str:
    """Run a program that must succeed, and return its output."""
    command = [program(name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def signing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Yield a server that requires signatures, with version 1 as `tpuserve export --sign` published it."""
    folder = tmp_path_factory.mktemp("signing")
    base, key = folder / "m", folder / "key"
    run("keygen", key)
    run("export", save_mlp(folder / "source"), base, "--sign", key)
    write_key_pair(folder / "other")

    def copy(version: int, *, sign_with: Path | None = key) -> Path:
        shutil.copytree(base / "1", base / str(version))
        (base / str(version) / SIGNATURE_FILE).unlink()
        if sign_with is not None:
            run("sign", base / str(version), "--key", sign_with)
        return base / str(version)

    copy(2, sign_with=None)
    shutil.copytree(base / "1", base / "3")
    changed = copy(4) / "saved_model.pb"
    changed.write_bytes(changed.read_bytes()[:-1] + b"\0")
    (copy(5) / "batching_params.pbtxt").write_text("max_batch_size { value: 1 }")
    write_manifest(copy(6))
    copy(7, sign_with=folder / "other")
    copy(8)
    flags = (config(folder, "m"), "--max_num_load_retries=0", f"--require_signed={key}.pub")
    with run_configured_server(folder / "log", *flags, model="m") as server:
        yield server


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (2, "it is not signed: manifest.sig.json is missing"),
        (3, "it is signed as m version 1, and this is m version 3"),
        (4, "saved_model.pb is corrupt: its sha256 is "),
        (5, "the signed manifest does not list batching_params.pbtxt"),
        (6, "does not match its manifest, which has changed"),
        (7, "which this server does not trust"),
    ],
)
def test_versions_without_a_valid_signature_are_refused_by_name(
    signing: RunningServer, version: int, reason: str
) -> None:
    state, error = signing.final_states("m")[version]
    assert state is State.END
    assert reason in error


def test_signed_versions_serve_and_show_their_signer(signing: RunningServer) -> None:
    found = signing.final_states("m")
    assert {version for version, (state, _) in found.items() if state is State.AVAILABLE} == {1, 8}
    with Client(signing.grpc) as client:
        assert client.predict("m", {"x": X}, version=8).version == 8
    with urllib.request.urlopen(f"{signing.rest}/v1/models") as response:
        (model,) = json.load(response)["models"]
    notes = {one["version"]: one["notes"] for one in model["versions"] if "notes" in one}
    assert any(note.startswith("signed by ed25519:") for note in next(iter(notes.values())))
