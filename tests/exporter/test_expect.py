"""Tests for --labelled and --expect: a metric of the written version below its bound ends the export."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from click.testing import CliRunner

from tests.exporter.conftest import Finished, read_manifest
from tests.exporter.test_sample_files import write_records
from tpuserve_exporter import ExpectationFailed
from tpuserve_exporter import export as export_live
from tpuserve_exporter.checks.evaluation import UNCHECKED
from tpuserve_exporter.command.checking import command as check_command
from tpuserve_exporter.command.inspecting import command as inspect_command
from tpuserve_exporter.signatures.raw_images import encode_png

pytestmark = [
    pytest.mark.xdist_group(__name__),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

Export = Callable[..., Finished]
SIZES = ("--batch-sizes", "1,4")
RANDOM = np.random.default_rng(8)
X = RANDOM.normal(0, 1, (11, 3)).astype(np.float32)
WIDE = RANDOM.normal(0, 1, (3, 4)).astype(np.float32)
CLASSES = (X @ WIDE).argmax(-1)


def trained(*, flip: bool = False) -> keras.Model:
    """Build a model that is right for `CLASSES`: `x` [batch, 3] → `scores` [batch, 4], `price` [batch, 1]."""
    x = keras.Input((3,), name="x")
    scores = keras.layers.Dense(4, use_bias=False, name="scores")
    price = keras.layers.Dense(1, use_bias=False, name="price")
    model = keras.Model(x, {"scores": scores(x), "price": price(x)})
    scores.kernel.assign(-WIDE if flip else WIDE)
    price.kernel.assign(np.ones((3, 1)))
    return model


def labels_of_prices() -> Mapping[str, Any]:
    return {"x": X, "label": CLASSES, "price_label": X.sum(1) + np.where(np.arange(11) % 2, 0.5, -0.5)}


@pytest.fixture(scope="module")
def folder(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("expect")
    trained().save(path / "trained.keras")
    trained(flip=True).save(path / "untrained.keras")
    np.savez(path / "rows.npz", **labels_of_prices())
    return path


def expect(*texts: str) -> list[str]:
    return [word for text in texts for word in ("--expect", text)]


def test_metrics_that_meet_their_bounds_are_published_and_reported(
    export: Export, folder: Path, tmp_path: Path
) -> None:
    pages = ("--report", tmp_path / "r.html", "--report", tmp_path / "r.json")
    wanted = expect("accuracy(scores)>=0.97", "top-2(serving_default/scores)>0.99", "rmse(price,price_label)<=0.5001")
    given = ("--labelled", folder / "rows.npz", *wanted, *SIZES)
    finished = export(folder / "trained.keras", tmp_path / "m", *given, *pages)
    assert finished.code == 0, finished.err
    assert "accuracy: 1 over 11 row(s) of rows.npz, expected >= 0.97 (output 'scores'" in finished.out
    evaluation = read_manifest(tmp_path / "m/1")["evaluation"]
    assert (evaluation["file"], evaluation["rows"], len(evaluation["sha256"])) == ("rows.npz", 11, 64)
    metrics = [(one["metric"], one["output"], one["labels"], one["met"]) for one in evaluation["metrics"]]
    assert metrics == [
        ("accuracy", "scores", "label", True),
        ("top-2", "scores", "label", True),
        ("rmse", "price", "price_label", True),
    ]
    assert evaluation["metrics"][2]["value"] == pytest.approx(0.5, abs=1e-5)
    assert json.loads((tmp_path / "r.json").read_text())["manifest"]["evaluation"] == evaluation
    page = (tmp_path / "r.html").read_text()
    assert "Metrics on labelled rows" in page
    assert evaluation["sha256"] in page
    inspected = CliRunner().invoke(inspect_command, [str(tmp_path / "m/1")], standalone_mode=False)
    assert "top-2" in inspected.output
    # A later check of the version finds the same figures.
    words = [tmp_path / "m/1", "--labelled", folder / "rows.npz", *wanted, "--json"]
    done = CliRunner().invoke(check_command, list(map(str, words)), standalone_mode=False)
    assert done.return_value == 0, done.output
    assert json.loads(done.stdout)["evaluation"] == evaluation


def test_an_untrained_model_is_not_published(export: Export, folder: Path, tmp_path: Path) -> None:
    wanted = expect("accuracy(scores)>=0.97", "mae(price,price_label)<1")
    given = ("--labelled", folder / "rows.npz", *wanted, *SIZES, "--report", tmp_path / "r.html")
    finished = export(folder / "untrained.keras", tmp_path / "m", *given, "--json")
    assert finished.code == 14
    assert not (tmp_path / "m").exists() or not list((tmp_path / "m").iterdir())
    document = finished.document
    assert document["kind"] == "ExpectationFailed"
    assert document["error"].startswith("accuracy is ")
    assert (
        "over 11 row(s) of rows.npz, expected >= 0.97 (output 'scores' of serving_default, labels 'label')"
        in (document["error"])
    )
    assert "mae" not in document["error"]
    assert "Likely causes: the checkpoint is not the trained one" in document["error"]
    assert [one["met"] for one in document["evaluation"]["metrics"]] == [False, True]
    assert "not met" in (tmp_path / "r.html").read_text()


def test_without_labels_the_report_says_what_nobody_checked(export: Export, folder: Path, tmp_path: Path) -> None:
    finished = export(folder / "trained.keras", tmp_path / "m", *SIZES, "--report", tmp_path / "r.html")
    assert finished.code == 0, finished.err
    assert UNCHECKED in finished.out
    assert UNCHECKED in (tmp_path / "r.html").read_text()
    assert "evaluation" not in read_manifest(tmp_path / "m/1")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (expect("accuracy>=1", "price>=1"), 2, "--expect has no metric 'price'"),
        (expect("mae<1"), 2, "--expect mae may mean any of the outputs price, scores of serving_default. Name one"),
        (expect("mae(scores)<1"), 9, "mae of serving_default/scores, labels 'label': labels have shape [4], but the "),
        (
            expect("auc(nope)>1"),
            9,
            "there is no output 'nope'. The outputs are serving_default: price float32[",
        ),
        ([*expect("mae(price)<1"), "--label-key", "y"], 9, "--label-key 'y': rows.npz has x, label, price_label"),
        ([*expect("mae(price)<1"), "--input-key", "x=z"], 9, "--input-key 'z': rows.npz has x, label, price_label"),
        (expect("no.module:f>1"), 7, "cannot import no.module"),
    ],
)
def test_expectations_that_do_not_fit_are_explained(
    export: Export, folder: Path, tmp_path: Path, options: list[str], code: int, message: str
) -> None:
    finished = export(folder / "trained.keras", tmp_path / "m", "--labelled", folder / "rows.npz", *options, *SIZES)
    assert (finished.code, message in finished.err) == (code, True), finished.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--expect", "accuracy>=1"), "--expect needs --labelled FILE, a file with inputs and their labels"),
        (("--label-key", "y"), "--label-key needs --labelled FILE"),
        (("--labelled", "rows.npz"), "--labelled rows.npz needs --expect, such as"),
        (("--labelled", "rows.npz", *expect("mae<1"), "--input-key", "x"), "--input-key 'x' is not of the form"),
    ],
)
def test_options_that_miss_another_are_refused(
    export: Export, folder: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(folder)
    finished = export("trained.keras", "m", *options)
    assert (finished.code, message in finished.err) == (2, True), finished.err


def brightest() -> keras.Model:
    """Build a model of the share of each colour: `image` [batch, 8, 8, 3] of 0..255 → `probabilities` [batch, 3]."""
    image = keras.Input((8, 8, 3), name="image")
    mean = keras.layers.GlobalAveragePooling2D()(keras.layers.Rescaling(1 / 255)(image))
    return keras.Model(image, keras.layers.Softmax(name="probabilities")(mean))


def test_records_of_images_have_names_of_classes(export: Export, tensorflow: None, tmp_path: Path) -> None:
    brightest().save(tmp_path / "colours.keras")
    names = ("red", "green", "blue")
    (tmp_path / "labels.txt").write_text("\n".join(names))
    rows = []
    for index in (0, 1, 2, 1, 0):
        pixels = np.zeros((8, 8, 3), np.uint8)
        pixels[..., index] = 255
        rows.append({"image/encoded": encode_png(pixels), "image/class": names[index].encode(), "image/height": [8]})
    records = write_records(tmp_path / "rows.tfrecord", rows)
    photo = ("--signature", "serving_default=tensor", "--signature", "photo=image_bytes")
    keys = (
        "--label-key",
        "image/class",
        "--input-key",
        "image_bytes=image/encoded",
        "--labels",
        tmp_path / "labels.txt",
    )
    given = ("--labelled", records, *keys, *expect("accuracy>=1"))
    finished = export(tmp_path / "colours.keras", tmp_path / "m", *photo, *SIZES, *given)
    assert finished.code == 0, finished.err
    [metric] = read_manifest(tmp_path / "m/1")["evaluation"]["metrics"]
    assert (metric["signature"], metric["labels"], metric["value"]) == ("photo", "image/class", 1)


def test_records_are_examples_of_a_signature_that_parses_them(export: Export, folder: Path, tmp_path: Path) -> None:
    records = write_records(
        tmp_path / "rows.tfrecord", [{"x": row, "y": [int(one)]} for row, one in zip(X, CLASSES, strict=True)]
    )
    given = ("--labelled", records, *expect("accuracy(scores)>=1"), "--signature", "serving_default=tf_example")
    finished = export(folder / "trained.keras", tmp_path / "m", *SIZES, *given)
    assert finished.code == 0, finished.err
    [metric] = read_manifest(tmp_path / "m/1")["evaluation"]["metrics"]
    assert (metric["labels"], metric["value"]) == ("y", 1)


def test_texts_of_a_csv_file_go_to_the_signature_that_runs_on_them(
    export: Export, folder: Path, tmp_path: Path
) -> None:
    names = np.array(["left", "right", "up", "down"])
    words = ["one two zero", "two", "zero one", "one, or two"]
    numbers = np.array([[1, 2, 0], [2, 0, 0], [0, 1, 0], [9, 9, 2]])  # 9 is an unknown word
    rows = [f'"{text}",{name}' for text, name in zip(words, names[(numbers @ WIDE).argmax(-1)], strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["sentence,class", *rows]))
    (tmp_path / "labels.txt").write_text("\n".join(names))
    signatures = [f"--signature={one}" for one in ("a=classify", "b=tests.exporter.signature_functions:words")]
    given = ("--labels", tmp_path / "labels.txt", "--labelled", tmp_path / "rows.csv", "--label-key", "class")
    finished = export(
        folder / "trained.keras", tmp_path / "m", *SIZES, *signatures, *given, *expect("accuracy(scores)>=1")
    )
    assert finished.code == 0, finished.err
    [metric] = read_manifest(tmp_path / "m/1")["evaluation"]["metrics"]
    assert (metric["signature"], metric["value"]) == ("b", 1)


def language_model() -> keras.Model:
    """Build a model of token pairs, whose scores of the successor are 2 higher: `ids` [batch, length] → `next`."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    table = keras.layers.Embedding(5, 5, name="next")
    model = keras.Model(ids, table(ids))
    table.set_weights([2 * np.roll(np.eye(5), 1, axis=1)])
    return model


def test_perplexity_of_sequences_ignores_padding(export: Export, tensorflow: None, tmp_path: Path) -> None:
    language_model().save(tmp_path / "tokens.keras")
    lengths = (3, 5, 2, 4, 4)
    rows = [
        {"ids": [(7 + one) % 5 for one in range(size)], "label": [(8 + one) % 5 for one in range(size)]}
        for size in lengths
    ]
    records = write_records(tmp_path / "rows.tfrecord", rows)
    expected = (np.exp(2) + 4) / np.exp(2)
    wanted = expect(f"perplexity<={expected + 1e-4}", "accuracy>=1")
    finished = export(tmp_path / "tokens.keras", tmp_path / "m", *SIZES, "--labelled", records, *wanted)
    assert finished.code == 0, finished.err
    [perplexity, _] = read_manifest(tmp_path / "m/1")["evaluation"]["metrics"]
    assert (perplexity["value"], perplexity["note"]) == (pytest.approx(expected, rel=1e-6), "18 labels")


def fixed() -> keras.Model:
    x = keras.Input(batch_shape=(4, 3), name="x")
    scores = keras.layers.Dense(4, use_bias=False, name="scores")
    model = keras.Model(x, scores(x))
    scores.kernel.assign(WIDE)
    return model


def test_a_model_of_fixed_size_gets_its_last_rows_repeatedly(tensorflow: None, tmp_path: Path) -> None:
    exported = export_live(
        fixed(), tmp_path / "m", labelled={"x": X, "y": CLASSES}, expect="accuracy>=1", progress=False
    )
    evaluation = exported.report["manifest"]["evaluation"]
    assert (evaluation["file"], evaluation["rows"], evaluation["metrics"][0]["value"]) == ("labelled.npz", 11, 1)


def ranking() -> keras.Model:
    """Build a model whose rows compete: `x` [batch, 3] → `share` [batch, 1]."""
    x = keras.Input((3,), name="x")
    return keras.Model(x, keras.layers.Lambda(lambda one: keras.ops.softmax(one[:, :1], axis=0), name="share")(x))


def test_metrics_of_rows_that_depend_on_each_other_name_their_number(tensorflow: None, tmp_path: Path) -> None:
    rows = {"x": X[:4], "label": np.exp(X[:4, 0]) / np.exp(X[:4, 0]).sum()}
    exported = export_live(
        ranking(), tmp_path / "m", labelled=rows, expect="mae<1e-6", batch_sizes=(1, 4), progress=False
    )
    assert any("metrics of serving_default are those of requests with 4 rows" in one for one in exported.warnings)


def f1(labels: Any, scores: Any) -> float:  # noqa: ANN401 - as users write it
    from sklearn.metrics import f1_score

    return float(f1_score(labels, scores.argmax(-1), average="macro"))


def test_functions_and_csv_files_work_from_python(tensorflow: None, tmp_path: Path) -> None:
    lines = [",".join(map(str, (label, *row))) for row, label in zip(X.tolist(), CLASSES, strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["y,a,b,c", *lines]))
    wanted = [f"{__name__}:f1(scores)>=1", "accuracy(scores)>=1"]
    options: dict[str, Any] = {
        "expect": wanted,
        "labelled": tmp_path / "rows.csv",
        "progress": False,
        "batch_sizes": (1, 4),
    }
    exported = export_live(trained(), tmp_path / "m", **options)
    assert [one["value"] for one in exported.report["manifest"]["evaluation"]["metrics"]] == [1, 1]
    assert "accuracy" in exported._repr_html_()
    with pytest.raises(ExpectationFailed, match=r"f1 is 0.* over 11 row"):
        export_live(trained(flip=True), tmp_path / "m", **options)
