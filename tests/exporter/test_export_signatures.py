"""Tests for `tpuserve export --signature`: host parts around the one device part, each compared with the source."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

from tests.exporter import builders
from tests.exporter.conftest import Finished, read_manifest, without_tried_sizes
from tests.exporter.served import serve
from tests.exporter.written_graph import nodes, read_meta_graph

pytestmark = [
    pytest.mark.xdist_group(__name__),
    # Keras 3.15 passes its variables to h5py, and numpy 2 warns about it.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

Export = Callable[..., Finished]
SIZES = ("--batch-sizes", "1,4")
LABELS = ("cat", "dog", "owl")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a model: `image` [batch, 6, 8, 3] → `probabilities` [batch, 3], `area` [batch, 1]."""
    path = tmp_path_factory.mktemp("pictures") / "pictures.keras"
    builders.pictures().save(path)
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.keras"
    builders.tiny().save(path)
    return path


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    (tmp_path / "labels.txt").write_text("\n".join(LABELS) + "\n")
    return tmp_path / "labels.txt"


def test_several_signatures_share_one_device_part(export: Export, pictures: Path, labels: Path, tmp_path: Path) -> None:
    requested = (
        "serving_default=tensor",
        "photo=image_bytes,scale=0..1",
        "examples=tf_example",
        "classes=classify",
        "area=regress,value=area",
    )
    flags = [flag for one in requested for flag in ("--signature", one)]
    finished = export(pictures, tmp_path / "m", *flags, "--labels", labels, *SIZES, "--verbose")
    assert finished.code == 0, finished.err
    for name in ("serving_default", "photo", "examples", "classes", "area"):
        assert f"Compare {name} with the source" in finished.out

    version = tmp_path / "m/1"
    meta_graph = read_meta_graph(version)
    methods = {
        name: one.method_name.split("/")[-1] for name, one in meta_graph.signature_def.items() if one.method_name
    }
    predicting = dict.fromkeys(("serving_default", "photo", "examples"), "predict")
    assert methods == {**predicting, "classes": "classify", "area": "regress"}
    [(function, alias)] = meta_graph.meta_info_def.function_aliases.items()
    assert alias == "tpu_func"
    assert holders_of_weights(meta_graph) == {function}
    assert callers(meta_graph, function) >= 5  # and the function contains no host operation
    assert not {"DecodeImage", "ParseExampleV2"} & operations(meta_graph, function)
    signatures = read_manifest(version)["signatures"]
    assert without_tried_sizes(signatures["classes"]["inputs"]) == {"inputs": {"dtype": "string", "shape": [None]}}
    assert all(one["rows_independent"] for one in signatures.values())
    # The fingerprint must match the rewritten file, because the server and other tools verify it.
    tf.saved_model.experimental.read_fingerprint(str(version)).singleprint()

    image = np.random.default_rng(0).random((2, 6, 8, 3)).astype(np.float32)
    probabilities, area = (value.numpy() for value in load_model(pictures)(image).values())
    rows = [encode_example(image=one) for one in image]
    classes = serve(version, "classes", inputs=np.array(rows, object))
    np.testing.assert_allclose(classes["scores"], probabilities, atol=1e-6)
    assert classes["classes"].tolist() == [[name.encode() for name in LABELS]] * 2
    np.testing.assert_allclose(serve(version, "area", inputs=np.array(rows, object))["outputs"], area[:, 0], atol=1e-6)


def test_image_bytes_are_decoded_resized_and_normalised(export: Export, pictures: Path, tmp_path: Path) -> None:
    options = "photo=image_bytes,scale=1/255,mean=0.4:0.5:0.6,std=0.2:0.25:0.3"
    finished = export(pictures, tmp_path / "m", "--signature", options, *SIZES)
    assert finished.code == 0, finished.err
    raw = np.random.default_rng(1).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    rows = np.array([png(raw), png(raw[:6, :8])], object)
    served = serve(tmp_path / "m/1", "photo", image_bytes=rows)
    resized = tf.image.resize(tf.constant(raw[None]), [6, 8]).numpy()
    expected = np.concatenate([resized, raw[None, :6, :8].astype(np.float32)])
    normalised = (expected / 255 - [0.4, 0.5, 0.6]) / [0.2, 0.25, 0.3]
    np.testing.assert_allclose(
        served["probabilities"], load_model(pictures)(normalised.astype(np.float32))["probabilities"], atol=1e-5
    )
    # No signature is named serving_default, so requests without a name get the first signature.
    assert set(read_manifest(tmp_path / "m/1")["signatures"]) == {"photo", "serving_default"}


@pytest.mark.parametrize(
    ("shape", "dtype", "options"),
    [
        ((6, 8), "float32", ",scale=0..1"),
        ((1, 6, 8), "uint8", ",resize=nearest"),
        ((None, None, 3), "float32", ",size=6x8,scale=1"),
    ],
    ids=["grey without channels", "channels first, bytes", "free size"],
)
def test_image_bytes_take_what_shape_the_model_takes(
    export: Export, tmp_path: Path, shape: tuple[int | None, ...], dtype: str, options: str
) -> None:
    builders.passed_on(list(shape), dtype).save(tmp_path / "same.keras")
    finished = export(tmp_path / "same.keras", tmp_path / "m", "--signature", f"photo=image_bytes{options}", *SIZES)
    assert finished.code == 0, finished.err
    raw = np.random.default_rng(1).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    [served] = serve(tmp_path / "m/1", "photo", image_bytes=np.array([png(raw)], object))["same"]
    grey = tf.io.decode_png(png(raw), channels=1).numpy()
    expected = {2: grey[..., 0] / 255, 3: grey.transpose(2, 0, 1) if shape[0] == 1 else raw}[len(shape)]
    np.testing.assert_allclose(served, expected, atol=1e-6)


@pytest.mark.parametrize("crop", [1.0, 0.5])
def test_the_middle_of_an_image_is_taken(export: Export, tmp_path: Path, crop: float) -> None:
    builders.passed_on([6, 8, 3], "float32").save(tmp_path / "same.keras")
    options = f"photo=image_bytes,resize=nearest,scale=1,crop={crop}"
    finished = export(tmp_path / "same.keras", tmp_path / "m", "--signature", options, *SIZES)
    assert finished.code == 0, finished.err
    shapes = [(12, 21), (19, 16), (12, 16), (1, 1)]
    raw = [np.random.default_rng(2).integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in shapes]
    served = serve(tmp_path / "m/1", "photo", image_bytes=np.array([png(one) for one in raw], object))["same"]
    boxes = {1.0: [(2, 0, 18, 12), (0, 3, 16, 15)], 0.5: [(6, 3, 14, 9), (4, 6, 12, 12)]}[crop]
    # PIL's order: left, top, right, bottom
    boxes += [(0, 0, 16, 12) if crop == 1 else (4, 3, 12, 9), (0, 0, 1, 1)]
    taken = [Image.fromarray(one).crop(box) for one, box in zip(raw, boxes, strict=True)]
    expected = [np.asarray(one.resize((8, 6), Image.Resampling.NEAREST)) for one in taken]
    np.testing.assert_array_equal(served, np.stack(expected))


def test_an_own_function_stands_before_the_device_part(export: Export, tiny: Path, tmp_path: Path) -> None:
    own = "serving_default=tests.exporter.signature_functions:words,unit=0.5"
    np.savez(tmp_path / "words.npz", text=["one two", "", "zero nought one two"])
    finished = export(tiny, tmp_path / "m", "--signature", own, *SIZES, "--check", tmp_path / "words.npz")
    assert finished.code == 0, finished.err
    served = serve(tmp_path / "m/1", "serving_default", text=np.array([b"two nought"], object))
    expected = load_model(tiny)(np.array([[1.0, 4.5, 0.0]], np.float32))
    np.testing.assert_allclose(served["scores"], expected, atol=1e-6)
    assert served["text"].tolist() == [b"two nought"]


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (
            ("a=regress",),
            2,
            "--signature a=regress needs floats of [batch] or [batch, 1], but the model's outputs are scores",
        ),
        (
            ("a=classify,scores=logits",),
            2,
            "the model has no output 'logits'. Its outputs are scores: float32(None, 2)",
        ),
        (
            ("a=image_bytes",),
            2,
            "a=image_bytes: no input of the model fits an image. Images need numbers of shape [batch, ",
        ),
        (("a=tests.exporter.signature_functions:none",), 7, "has no function 'none'"),
        (("a=tests.exporter.signature_functions:fails",), 7, "fails failed: RuntimeError: no vocabulary here"),
        (("a=tests.exporter.signature_functions:fails,x=1",), 7, "fails failed: TypeError: fails() got an unexpected"),
        (("a=tests.exporter.signature_functions:fails_when_traced",), 7, "fails_when_traced"),
        (("a=tests.exporter.signature_functions:lists",), 7, "returned list instead of a dictionary of tensors"),
        (
            ("a=tests.exporter.signature_functions:nothing",),
            7,
            "returned NoneType; expected a function, a dictionary",
        ),
    ],
)
def test_signatures_that_cannot_be_are_refused(
    export: Export, tiny: Path, tmp_path: Path, flags: tuple[str, ...], code: int, message: str
) -> None:
    finished = export(tiny, tmp_path / "m", *(flag for one in flags for flag in ("--signature", one)))
    assert (finished.code, message in finished.err) == (code, True), finished.err
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("size=8x8", "size=8x8 differs from the model's input 'image', which is 6x8"),
        ("scale=1,mean=0.1:0.2", "mean=0.1:0.2 has 2 numbers, but takes one number, or 3 separated by colons"),
        (
            "size=6x8",
            "the model does not show which pixel values it was trained with. Add --image-scale with one of none",
        ),
        ("input=picture", "the model has no input 'picture'. Its inputs are image: float32[?, 6, 8, 3]"),
    ],
)
def test_image_options_that_do_not_fit_are_refused(
    export: Export, pictures: Path, tmp_path: Path, option: str, message: str
) -> None:
    finished = export(pictures, tmp_path / "m", "--signature", f"photo=image_bytes,{option}")
    assert (finished.code, message in finished.err) == (2, True), finished.err


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        (
            ("a=tensors",),
            "the kind is unknown. Kinds are tensor, image_bytes, tf_example, classify, regress and pkg.module:function",
        ),
        (("a",), "--signature 'a' is not of the form NAME=KIND[,OPTION=VALUE...]"),
        (("a=tensor", "a=tf_example"), "--signature a=… occurs 2 times. Use each name once"),
        (("a=tensor,scale=1",), "--signature a=tensor: there is no option 'scale'. Options of tensor: none"),
        (("a=classify,value=x",), "--signature a=classify: there is no option 'value'. Options of classify: scores"),
        (
            ("a=image_bytes,sizes=8x8",),
            "there is no option 'sizes'. Options of image_bytes: input, size, crop, resize, scale",
        ),
        (
            ("a=image_bytes,size=big",),
            "--signature a=image_bytes: size=big is not of the form HEIGHTxWIDTH, such as size=224x224",
        ),
        (("a=image_bytes,std=0.2:0",), "std is a divisor and cannot be 0"),
        (
            ("a=image_bytes,crop=0",),
            "crop is the fraction of the image to keep, above 0 and at most 1, such as crop=0.875",
        ),
        (
            ("a=image_bytes,crop=224",),
            "crop is the fraction of the image to keep, above 0 and at most 1, such as crop=0.875",
        ),
        (("a=image_bytes,scale=1/x",), "scale=1/x is not a number"),
        (("a=image_bytes,scale=1/0",), "scale=1/0 is not a number"),
        (("a=image_bytes,mean=nan",), "mean=nan is not a number"),
        (
            ("a=image_bytes,mean=0.5",),
            "mean= needs scale=, which is applied first. Use scale=1/255 if the mean is within",
        ),
        (
            ("a=image_bytes,scale=torch,std=2",),
            "scale=torch also sets the mean, the standard deviation and the channel order. Omit std=",
        ),
        (
            ("a=image_bytes,scale=imagenet",),
            "scale=imagenet is not a number nor one of none, 0..1, -1..1, torch, caffe",
        ),
        (("a=image_bytes,scale=1,order=gbr",), "order=gbr is neither rgb nor bgr"),
        (("a=image_bytes,size=" + "9" * 5000 + "x1",), "is not of the form HEIGHTxWIDTH"),
        (("a=image_bytes,scale=0",), "scale=0 makes all images equal. Use scale=1 to leave the pixels unchanged"),
        (("a=tensor", "--image-scale", "0..1"), "--image-scale needs an image signature without scale=. Add"),
        (("a=image_bytes,scale=1:2",), "scale=1:2 has 2 numbers, but takes one"),
        (("a=image_bytes,resize=best",), "resize=best is not one of bilinear, nearest"),
    ],
)
def test_what_the_text_alone_tells_is_refused_before_the_source_is_read(
    export: Export, tmp_path: Path, requested: tuple[str, ...], message: str
) -> None:
    scale = requested.index("--image-scale") if "--image-scale" in requested else len(requested)
    flags = [*(flag for one in requested[:scale] for flag in ("--signature", one)), *requested[scale:]]
    finished = export(tmp_path / "not there.keras", tmp_path / "m", *flags)
    assert (finished.code, message in finished.err.replace("\n", " ")) == (2, True), finished.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("cat\ndog\n", "output 'probabilities' has 3 classes, but --labels has 2"),
        ("cat\n\nowl\n", "line 2 of labels.txt is empty"),
        ("cat\ndog\ncat\n", "'cat' occurs 2 times in labels.txt"),
        ("", "labels.txt is empty"),
    ],
)
def test_labels_that_do_not_fit_are_refused(
    export: Export, pictures: Path, tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "labels.txt").write_text(content)
    finished = export(pictures, tmp_path / "m", "--signature", "c=classify", "--labels", tmp_path / "labels.txt")
    assert (finished.code, message in finished.err) == (2, True), finished.err


def test_an_output_that_only_looks_like_scores_is_not_taken_for_them(export: Export, tmp_path: Path) -> None:
    """Check that `embedding`, floats of [batch, 4], is not mistaken for scores."""
    builders.named_parts().save(tmp_path / "parts.keras")
    finished = export(tmp_path / "parts.keras", tmp_path / "m", "--signature", "c=classify")
    assert (finished.code, "choose the output with scores=NAME. Outputs that fit: embedding" in finished.err) == (
        2,
        True,
    )


def test_signatures_are_put_before_that_of_a_saved_model(export: Export, pictures: Path, tmp_path: Path) -> None:
    assert export(pictures, tmp_path / "first", *SIZES).code == 0
    requested = (
        "--signature",
        "serving_default=tensor",
        "--signature",
        "photo=image_bytes,scale=0..1",
        "--batching",
        "in-graph",
    )
    finished = export(tmp_path / "first/1", tmp_path / "second", *requested, *SIZES)
    assert finished.code == 0, finished.err
    raw = np.random.default_rng(1).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    served = serve(tmp_path / "second/1", "photo", image_bytes=np.array([png(raw)], object))
    expected = serve(tmp_path / "first/1", image=raw[None].astype(np.float32) / 255)
    np.testing.assert_allclose(served["probabilities"], expected["probabilities"], atol=1e-6)
    assert "BatchFunction" in {node.op for node in nodes(read_meta_graph(tmp_path / "second/1"))}


def test_signature_name_and_signature_do_not_go_together(export: Export, tiny: Path, tmp_path: Path) -> None:
    finished = export(tiny, tmp_path / "m", "--signature", "a=tensor", "--signature-name", "b")
    assert (finished.code, "Omit --signature-name" in finished.err) == (2, True)


def load_model(path: Path) -> Any:  # noqa: ANN401 - a Keras model
    return keras.saving.load_model(path, compile=False)


def encode_example(**features: np.ndarray) -> bytes:
    example = tf.train.Example()
    for name, value in features.items():
        example.features.feature[name].float_list.value.extend(value.ravel())
    return bytes(example.SerializeToString())


def png(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "png")
    return file.getvalue()


def operations(meta_graph: MetaGraphDef, function: str) -> set[str]:
    [found] = [one for one in meta_graph.graph_def.library.function if one.signature.name == function]
    return {node.op for node in found.node_def}


def callers(meta_graph: MetaGraphDef, function: str) -> int:
    return sum(attribute.func.name == function for node in nodes(meta_graph) for attribute in node.attr.values())


def holders_of_weights(meta_graph: MetaGraphDef) -> set[str]:
    """Return the functions that compute with variables."""
    return {
        one.signature.name
        for one in meta_graph.graph_def.library.function
        if any(node.op == "MatMul" for node in one.node_def)
    }
