"""Tests for `tpuserve predict` against a real server, with each kind of input file."""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from tests.clients.clients_under_test import Clock
from tests.clients.model_server import BOOL, FLOAT, STRING, UINT8, Failure, ModelServer, Served
from tests.support.client_commands import client_commands
from tpuserve_client.cli import connection
from tpuserve_client.errors import Code

ROW = [1.0, 2.0, 3.0, 4.0]
ANSWER = [3.0, 5.0, 7.0, 9.0]


@pytest.fixture(autouse=True)
def _address(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUSERVE_ADDRESS", address)


def predict(content: object, *arguments: str) -> Result:
    """Run the command with `content` on standard input: bytes as they are, any other object as JSON."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return CliRunner().invoke(client_commands, ["predict", *arguments, "--input", "-"], input=data)


def answer(content: object, *arguments: str) -> dict[str, object]:
    result = predict(content, *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    outputs: dict[str, object] = json.loads(result.stdout)["outputs"]
    return outputs


def encoded(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def zipped(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]  # its stub takes a keyword for its own
    return file.getvalue()


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        {"instances": [ROW]},
        {"instances": [{"x": ROW}]},
        {"inputs": [ROW]},
        {"inputs": {"x": [ROW]}, "signature_name": "serving_default"},
        {"x": [ROW]},
        [ROW],
        [[1, 2, 3, 4]],
        encoded(np.array([ROW], np.float32)),
        zipped(x=np.array([ROW], np.float32)),
    ],
    ids=["rows", "named rows", "columns", "named columns", "names", "array", "integers", "npy", "npz"],
)
def test_every_kind_of_file_is_understood(content: object) -> None:
    assert answer(content, "affine") == {"y": [ANSWER], "best": [3]}


def test_base64_is_bytes() -> None:
    assert answer({"a": 1, "b": ["x", {"b64": "eQ=="}, {"b64": "/w=="}]}, "pair") == {"b": ["x", "y", {"b64": "/w=="}]}


def test_version_label_signature_and_output_are_passed_on(server: ModelServer) -> None:
    assert answer([ROW], "affine", "--version", "5", "--signature", "serving_default", "--output", "best") == {
        "best": [3]
    }
    assert answer([ROW], "affine", "--label", "stable")
    seen = [(one.version, one.label, one.signature) for one in server.served if one.method == "Predict"]
    assert seen == [(5, None, "serving_default"), (None, "stable", "")]


@pytest.mark.parametrize("priority", ["high", "low"])
def test_priority_is_passed_on(server: ModelServer, priority: str) -> None:
    assert answer([ROW], "affine", "--priority", priority)
    assert [one.priority for one in server.served if one.method == "Predict"] == [priority]


def test_priority_that_is_none_is_wrong_usage() -> None:
    result = predict([ROW], "affine", "--priority", "urgent")
    assert result.exit_code == 2
    assert "'high', 'low'" in result.stderr


def test_plain_output_is_a_line_for_each_output() -> None:
    lines = predict([ROW], "affine").stdout.splitlines()
    assert sorted(lines) == ["best\tint64[1]\t[3]", "y\tfloat32[1, 4]\t[[3., 5., 7., 9.]]"]


def test_outputs_are_saved(tmp_path: Path) -> None:
    assert predict([ROW], "affine", "--save", str(tmp_path / "out.npz")).exit_code == 0
    assert predict({"a": 1, "b": ["x", "yz"]}, "pair", "--save", str(tmp_path / "text.npz")).exit_code == 0
    with np.load(tmp_path / "out.npz") as saved:
        assert saved["y"].tolist() == [ANSWER]
        assert saved["y"].dtype == np.float32
    with np.load(tmp_path / "text.npz") as saved:
        assert saved["b"].tolist() == [b"x", b"yz"]


@pytest.mark.parametrize(
    ("dtype", "options", "white"),
    [
        (FLOAT, ["--scale", "0..1"], 1.0),
        (FLOAT, ["--no-scale"], 255.0),
        (UINT8, [], 255),
    ],
)
@pytest.mark.parametrize("shape", [[-1, 2, 3, 3], [-1, 3, 2, 3], [-1, 2, 3], [2, 3, 3], [2, 3], [-1, 2, 3, 1]])
def test_image_takes_the_shape_and_dtype_of_the_input(
    server: ModelServer, dtype: int, options: list[str], white: float, shape: list[int]
) -> None:
    server.signatures["mirror"] = ({"x": (dtype, shape)}, {"x": (dtype, shape)})
    outputs = answer(png(np.full((8, 12, 3), 255, np.uint8)), "mirror", *options)
    pixels = np.array(outputs["x"])
    assert list(pixels.shape) == [1 if size < 0 else size for size in shape]
    assert (pixels == white).all()


def test_image_of_any_size_keeps_its_own(server: ModelServer) -> None:
    spec = {"x": (UINT8, [-1, -1, -1, 3])}
    server.signatures["mirror"] = (spec, spec)
    pixels = np.arange(30, dtype=np.uint8).reshape(2, 5, 3)
    assert answer(png(pixels), "mirror") == {"x": [pixels.tolist()]}


def test_image_goes_as_it_is_to_a_string_input(server: ModelServer) -> None:
    spec = {"x": (STRING, [-1])}
    server.signatures["mirror"] = (spec, spec)
    content = png(np.zeros((1, 1), np.uint8))
    result = predict(content, "mirror", "--json")
    assert json.loads(result.stdout)["outputs"]["x"][0]["b64"]
    assert result.stderr == f"image: sent unchanged, {len(content)} bytes\n"
    refused = predict(content, "mirror", "--scale", "0..1")
    assert (refused.exit_code, "accepts encoded image files. Omit --scale" in refused.stderr) == (1, True)


def test_image_for_floating_point_needs_a_scale_and_is_told_of(server: ModelServer) -> None:
    spec = {"x": (FLOAT, [-1, 2, 2, 3])}
    server.signatures["mirror"] = (spec, spec)
    content = png(np.full((4, 6, 3), 255, np.uint8))
    refused = predict(content, "mirror")
    assert refused.exit_code == 1
    assert "the metadata has no range of pixel values. Add --scale none (0..255), --scale 0..1" in refused.stderr
    assert "Predict" not in server.methods()
    result = predict(content, "mirror", "--scale", "-1..1", "--json")
    assert np.unique(json.loads(result.stdout)["outputs"]["x"]).tolist() == [1.0]
    assert result.stderr == "image: RGB 6x4, sent as 2x2; pixel values: -1..1\n"


def test_sixteen_bits_and_orientation_are_heeded(server: ModelServer) -> None:
    spec = {"x": (UINT8, [-1, -1, -1, 1])}
    server.signatures["mirror"] = (spec, spec)
    deep = np.array([[0, 0x8080, 0xFFFF]], np.uint16)
    assert answer(png(deep), "mirror") == {"x": [[[[0], [128], [255]]]]}
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6  # an orientation that requires a quarter turn
    Image.fromarray(np.array([[0, 255]], np.uint8)).save(file, "PNG", exif=exif)
    result = predict(file.getvalue(), "mirror", "--json")
    assert json.loads(result.stdout)["outputs"] == {"x": [[[[0]], [[255]]]]}
    assert "turned upright" in result.stderr


def test_text_goes_to_a_string_input(server: ModelServer, tmp_path: Path) -> None:
    spec = {"x": (STRING, [-1])}
    server.signatures["mirror"] = (spec, spec)
    (tmp_path / "review.txt").write_text("a good film\n")
    for given in (["--text", "a good film"], ["--input", str(tmp_path / "review.txt")]):
        result = CliRunner().invoke(client_commands, ["predict", "mirror", *given, "--json"])
        assert json.loads(result.stdout)["outputs"] == {"x": ["a good film"]}
    result = CliRunner().invoke(client_commands, ["predict", "affine", "--text", "a good film"])
    assert (result.exit_code, "does not accept text. Send an array" in result.stderr) == (1, True)
    assert CliRunner().invoke(client_commands, ["predict", "mirror"]).exit_code == 2


def test_best_classes_are_named_by_the_servers_labels_or_a_file(server: ModelServer, tmp_path: Path) -> None:
    server.labels = ["cat", "dog", "owl", "emu"]
    top = json.loads(predict([ROW], "affine", "--json").stdout)["top"]
    assert [(one["label"], one["index"], one["score"]) for one in top["y"][0]] == [
        ("emu", 3, 9.0),
        ("owl", 2, 7.0),
        ("dog", 1, 5.0),
        ("cat", 0, 3.0),
    ]
    assert "y\t1\temu\t9" in predict([ROW], "affine").stdout.splitlines()
    (tmp_path / "names.txt").write_text("a\nb\nc\nd\n")
    top = json.loads(predict([ROW], "affine", "--json", "--labels", str(tmp_path / "names.txt")).stdout)["top"]
    assert top["y"][0][0]["label"] == "d"
    (tmp_path / "names.txt").write_text("a\nb\n")
    result = predict([ROW], "affine", "--labels", str(tmp_path / "names.txt"))
    assert result.stderr == "labels: names.txt has 2 lines, but no output has scores for that many classes\n"


def test_numbers_that_are_no_scores_are_not_ranked() -> None:
    assert json.loads(predict([ROW], "affine", "--json").stdout)["top"] == {}


def test_probabilities_are_ranked_without_labels(server: ModelServer) -> None:
    spec = {"x": (FLOAT, [-1, 3])}
    server.signatures["mirror"] = (spec, spec)
    lines = predict([[0.25, 0.5, 0.25]], "mirror").stdout.splitlines()
    assert lines[1:] == ["x\t1\tclass 1\t0.5", "x\t2\tclass 0\t0.25", "x\t3\tclass 2\t0.25"]


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ({"x": (FLOAT, [-1, 64])}, "does not have the shape of an image"),
        ({"x": (BOOL, [-1, 2, 2])}, "cannot represent the values of an image"),
        (
            {"x": (FLOAT, [-1, 2, 2]), "z": (FLOAT, [])},
            "An image is a single input",
        ),
    ],
)
def test_image_for_a_model_that_takes_none_is_refused(
    server: ModelServer, specs: dict[str, tuple[int, list[int]]], message: str
) -> None:
    server.signatures["mirror"] = (specs, specs)
    result = predict(png(np.zeros((2, 2), np.uint8)), "mirror")
    assert result.exit_code == 1
    assert message in result.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not json", "neither JSON nor"),
        (b"[" * 5000, "neither JSON nor"),
        (b"\x93NUMPY and no more", "not a valid numpy file"),
        (b"PK\x03\x04 and no more", "not a valid numpy file"),
        (b"\x89PNG and no more", "Cannot read the image"),
        ({"instances": [{"x": 1}, {"z": 1}]}, "same inputs"),
        ({"x": [{"b64": 1}]}, "Invalid value"),
        ({"x": [[1, 2], [3]]}, "Not an array"),
    ],
)
def test_broken_input_is_one_line(content: object, message: str, server: ModelServer) -> None:
    result = predict(content, "single")
    assert result.exit_code == 1
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "Predict" not in server.methods()


def test_servers_refusal_is_one_line(server: ModelServer) -> None:
    server.failures.append(Failure(Code.NOT_FOUND, "Servable not found for request: Latest(m)"))
    result = predict({"x": [ROW]}, "affine")
    assert result.exit_code == 1
    assert result.stderr == "Error: NOT_FOUND: Servable not found for request: Latest(m)\n"


def test_timeout_spans_all_requests_of_the_command(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the metadata request, which an image needs, use up the timeout before the prediction starts."""
    clock = Clock()
    monkeypatch.setattr(connection, "monotonic", clock)
    begin = server.begin

    def slowly(served: Served) -> Failure | None:
        clock.sleep(31.0)
        return begin(served)

    monkeypatch.setattr(server, "begin", slowly)
    result = predict(png(np.zeros((2, 2), np.uint8)), "single", "--timeout", "30", "--scale", "none")
    assert result.exit_code == 1
    assert "Error: DEADLINE_EXCEEDED" in result.stderr
    assert server.methods() == ["GetModelMetadata"]


@pytest.mark.parametrize("arguments", [["m"], ["m", "-i", "/no/such/file"], ["m", "-i", "-", "--version", "x"]])
def test_wrong_usage_exits_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(client_commands, ["predict", *arguments]).exit_code == 2


def test_version_and_label_exclude_each_other() -> None:
    assert predict([ROW], "affine", "--version", "1", "--label", "stable").exit_code == 2


def test_without_pillow_the_extra_is_named(address: str) -> None:
    program = "import sys; sys.modules['PIL'] = None; from tpuserve_client.cli import predict_main; predict_main()"
    result = subprocess.run(
        [sys.executable, "-c", program, "single", "--input", "-", "--address", address],
        input=png(np.zeros((2, 2), np.uint8)),
        capture_output=True,
        check=False,
    )
    assert result.returncode == 1
    assert b"pip install 'tpuserve-client[image]'" in result.stderr
