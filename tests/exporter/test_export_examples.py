"""Tests for `--example INPUT=EXPECTED`: it runs the version on a file's bytes, and a wrong output ends the export."""

import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tests.exporter.conftest import Finished
from tpuserve_exporter import ParityFailed
from tpuserve_exporter import export as export_live
from tpuserve_exporter.checks.example_runner import show_inputs
from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.options.example import Example
from tpuserve_exporter.signatures.raw_images import encode_png

pytestmark = [
    pytest.mark.xdist_group(__name__),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

Export = Callable[..., Finished]
LABELS = ("red", "green", "blue")
SIZES = ("--batch-sizes", "1,2")
PHOTO = ("--signature", "serving_default=tensor", "--signature", "photo=image_bytes", "--labels", "labels.txt")


def brightest() -> keras.Model:
    """Build a model of the share of each colour: `image` [batch, 8, 8, 3] of 0..255 → `probabilities` [batch, 3]."""
    image = keras.Input((8, 8, 3), name="image")
    mean = keras.layers.GlobalAveragePooling2D()(keras.layers.Rescaling(1 / 255)(image))
    return keras.Model(image, keras.layers.Softmax(name="probabilities")(mean))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model, labels, and an image of each colour."""
    path = tmp_path_factory.mktemp("colours")
    brightest().save(path / "colours.keras")
    (path / "labels.txt").write_text("\n".join(LABELS) + "\n")
    for index, label in enumerate(LABELS):
        pixels = np.zeros((8, 8, 3), np.uint8)
        pixels[..., index] = 255
        (path / f"{label}.png").write_bytes(encode_png(pixels))
    scores = np.exp([1.0, 0, 0]) / np.exp([1.0, 0, 0]).sum()
    np.save(path / "scores.npy", scores)
    np.save(path / "off.npy", scores + 0.01)
    np.save(path / "words.npy", np.array(LABELS))
    np.save(path / "imaginary.npy", scores + 1j)
    np.save(path / "square.npy", np.zeros((2, 2)))
    np.save(path / "nan.npy", np.full((8, 8, 3), np.nan, np.float32))
    (path / "row.json").write_text(json.dumps({"image": [[[0, 0, 255]] * 8] * 8}))
    (path / "short.json").write_text("[1, 2]")
    (path / "other.json").write_text('{"picture": 1}')
    return path


@pytest.fixture
def ask(export: Export, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Finished]:
    monkeypatch.chdir(folder)

    def run(*examples: str) -> Finished:
        flags = [flag for one in examples for flag in ("--example", one)]
        return export("colours.keras", tmp_path / "m", *PHOTO, *SIZES, *flags, "--report", tmp_path / "r.json")

    return run


def test_expected_answers_are_published_and_reported(ask: Callable[..., Finished], tmp_path: Path) -> None:
    finished = ask("red.png=red", "green.png=1", "red.png=scores.npy", "row.json=blue")
    assert finished.code == 0, finished.err
    assert "examples: 4 correct" in finished.out
    assert "4 correct" in finished.out
    samples = json.loads((tmp_path / "r.json").read_text())["samples"]
    assert [(one["name"], one["signature"], one["expected"], one["passed"]) for one in samples[:4]] == [
        ("red.png", "photo", "red", True),
        ("green.png", "photo", "1", True),
        ("red.png", "photo", "an array", True),
        ("row.json", "serving_default", "blue", True),
    ]
    assert samples[0]["image"].startswith("data:image/png;base64,")
    assert samples[0]["prediction"]["top"][0]["label"] == "red"
    assert [one["passed"] for one in samples[4:]] == [None] * (len(samples) - 4)
    assert 4 < len(samples) <= 12


def test_a_wrong_answer_ends_the_export(ask: Callable[..., Finished], tmp_path: Path) -> None:
    finished = ask("red.png=red", "green.png=blue", "red.png=off.npy")
    assert finished.code == 3
    assert "2 of 3 examples have a wrong answer. green.png: expected blue, received green (top 3: green 0.57" in (
        finished.err
    )
    assert "red.png: output 'probabilities' differs by up to 0.01. The tolerance is 1e-05" in finished.err
    assert "(--atol, --rtol), received top 3: red 0.576" in finished.err
    assert not (tmp_path / "m").exists()
    samples = json.loads((tmp_path / "r.json").read_text())["samples"]
    assert [(one["name"], one["passed"]) for one in samples[:3]] == [
        ("green.png", False), ("red.png", False), ("red.png", True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("example", "code", "message"),
    [
        ("red.png=rde", 9, "expects 'rde', but no class has this name. Did you mean 'red'?"),
        ("red.png=3", 9, "expects class 3, but the scores are of classes 0 to 2"),
        ("red.png=" + "9" * 5000, 9, "the scores are of classes 0 to 2"),
        ("red.png=words.npy", 9, "output 'probabilities' is float32[1, 3], but the expected array has dtype <U5"),
        (
            "red.png=imaginary.npy",
            9,
            "output 'probabilities' is float32[1, 3], but the expected array has dtype complex128",
        ),
        ("red.png=square.npy", 9, "output 'probabilities' is float32[1, 3], but the expected array has shape [2, 2]"),
        ("nan.npy=red", 3, "nan.npy: expected red, received NaN (top 3: red nan"),
        ("short.json=red", 9, "input 'image' is float32[?, 8, 8, 3], but the sample has shape [2]"),
        ("other.json=red", 9, "serving_default has no input 'picture'"),
        ("text:a good film=red", 9, "--example a good film: no signature takes this input"),
        ("nowhere.png=red", 2, "there is no file 'nowhere.png'. Use INPUT=EXPECTED, such as photo.jpg=tabby"),
        ("red.png", 2, "--example 'red.png' has no expected answer"),
        ("red.png=", 2, "--example 'red.png=' has no expected answer"),
        ("red.png=nowhere.npy", 2, "cannot read nowhere.npy: No such file or directory"),
        ("red.png=labels.npz", 2, "cannot read labels.npz"),
    ],
)
def test_an_example_that_cannot_be_is_refused(
    ask: Callable[..., Finished], tmp_path: Path, example: str, code: int, message: str
) -> None:
    finished = ask(example)
    assert (finished.code, message in finished.err.replace("\n", " ")) == (code, True), finished.err
    assert not (tmp_path / "m").exists()


def test_labels_that_are_not_as_many_as_the_scores_give_a_warning(export: Export, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("red\ngreen\n")
    arguments = ("--labels", tmp_path / "labels.txt", "--batch-sizes", "1", "--dry-run")
    finished = export(folder / "colours.keras", tmp_path / "m", *arguments)
    assert finished.code == 0, finished.err
    assert "warning: --labels has 2 classes, but the scores have 3" in finished.out


def test_a_text_goes_to_a_signature_of_text(export: Export, tmp_path: Path) -> None:
    from tests.exporter import builders

    builders.tiny().save(tmp_path / "tiny.keras")
    own = ("--signature", "words=tests.exporter.signature_functions:words")
    good = export(
        tmp_path / "tiny.keras", tmp_path / "m", *own, *SIZES, "--example", "text:one two=one two", "--dry-run"
    )
    assert good.code == 0, good.err
    bad = export(tmp_path / "tiny.keras", tmp_path / "m", *own, *SIZES, "--example", "text:one two=two", "--dry-run")
    assert (bad.code, "one two: expected two, received one two (top 2: class" in bad.err) == (3, True), bad.err


def test_python_takes_pairs_of_content_and_answer(folder: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "signature": ["serving_default=tensor", "photo=image_bytes"],
        "progress": False,
        "batch_sizes": (1,),
    }
    labels = folder / "labels.txt"
    image = np.zeros((8, 8, 3), np.float32)
    image[..., 2] = 255
    pairs = [
        (folder / "red.png", "red"),
        ((folder / "green.png").read_bytes(), np.int64(1)),
        ({"image": image}, "blue"),
        (image, np.array([0.21194, 0.21194, 0.57612])),
    ]
    done = export_live(brightest(), tmp_path / "m", examples=pairs, labels=labels, **options)
    assert [one["passed"] for one in done.report["samples"][:4]] == [True] * 4
    with pytest.raises(ParityFailed, match="expected red, received blue"):
        export_live(brightest(), tmp_path / "m", examples={folder / "blue.png": "red"}, labels=labels, **options)


@pytest.mark.parametrize("values", [(-1e308, 1e308), (2**62, 2**62), (5.0, 5.0)])
def test_a_report_shows_numbers_of_any_size_as_a_picture(values: tuple[float, float]) -> None:
    assert show_inputs({"image": np.resize(values, (1, 8, 8, 1))})["image"].startswith("data:image/png;base64,")


@pytest.mark.parametrize(
    ("text", "name", "kind", "expected"),
    [
        ("a=b.txt=c=d", "a=b.txt", "text", "c=d"),
        ("text:1 = 1=yes", "1 = 1", "text", "yes"),
        ('json:{"a": 1}=3', '{"a": 1}', "json", "3"),
    ],
)
def test_the_right_equals_sign_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, name: str, kind: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a=b.txt").write_text("words")
    read = Example.parse(text)
    assert (read.name, read.kind, read.expected) == (name, kind, expected)


def test_a_text_file_has_neither_a_byte_order_mark_nor_its_last_newline(tmp_path: Path) -> None:
    (tmp_path / "film.txt").write_bytes(b"\xef\xbb\xbfgood\nfilm\r\n")
    assert Example.parse(f"{tmp_path / 'film.txt'}=1").content == b"good\nfilm"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("json:" + "[" * 100_000 + "=1", "cannot read .* as JSON: it is nested too deeply"),
        ("json:" + "[" * 500 + "]" * 500 + "=1", "as JSON: "),
        ('json:{"image"=1', "as JSON: Expecting"),
        ('json:{"image": null}=1', "'image' is neither an array of numbers nor an array of strings"),
        ('json:[["a"], ["b", "c"]]=1', "the value is neither an array of numbers nor an array of strings"),
        ("json:" + "1" * 30 + "=1", "the value is neither"),
        ("json:[[1], [2, 3]]=1", "the value is not an array: "),
        ('json:"\\ud800"=1', "the value is not an array: "),
        ("text:\udcff=1", "is not valid UTF-8"),
        ("a film that is good " * 300 + "=positive", "there is no file"),
    ],
)
def test_invalid_content_is_refused_before_the_source_is_read(text: str, message: str) -> None:
    with pytest.raises(OptionConflict, match=message):
        Example.parse(text)


def test_numpy_files_that_hold_no_arrays_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "parts.npz", "w") as archive:
        archive.writestr("image", "no array")
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 1000), }".ljust(117) + b"\n"
    (tmp_path / "huge.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    for name, message in (("parts.npz", "its part 'image' is not an .npy file"), ("huge.npy", "Unable to allocate")):
        with pytest.raises(OptionConflict, match=f"cannot read {name} as a numpy file: {message}"):
            Example.parse(f"{tmp_path / name}=1")


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "is empty"), (b"\x00\xff\x00", "as an image, text, JSON, .npy or .npz")]
)
def test_a_file_of_nothing_known_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(OptionConflict, match=message):
        Example.parse(f"{tmp_path / 'file'}=1")
