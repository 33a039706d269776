"""Models for the console: a classifier of pictures with several signatures, and prices of numbers and text."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import numpy as np
import tensorflow as tf
from PIL import Image
from sklearn.datasets import load_digits

ROOT: Final = Path(__file__).resolve().parents[3]
LABELS: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_CONFIGURATION: Final = """\
model_config_list {{
  config {{
    name: "digits" base_path: "{0}/digits" model_platform: "tensorflow"
    version_labels {{ key: "stable" value: 1 }}
  }}
  config {{ name: "prices" base_path: "{0}/prices" model_platform: "tensorflow" }}
}}
"""
# A picture, a picture as a file, and Classify.
_SIGNATURES: Final = ("serving_default=tensor", "photo=image_bytes", "classes=classify")


def export_digits(folder: Path, *, epochs: int = 5) -> Path:
    """Train the classifier of digits, export it as version 1, and return its base path."""
    base = folder / "digits"
    labels = folder / "labels.txt"
    labels.write_text("\n".join(LABELS))
    checkpoints = folder / "checkpoints"
    _run([sys.executable, "examples/digits/train.py", "--out", str(checkpoints), "--epochs", str(epochs)])
    signatures = [option for each in _SIGNATURES for option in ("--signature", each)]
    _run([
        str(Path(sys.executable).with_name("tpuserve")), "export", str(checkpoints), str(base),
        "--model", "examples.digits.model:build", *signatures, "--image-scale", "0..1", "--labels", str(labels),
        "--labelled", str(checkpoints / "held_out.npz"), "--expect", "accuracy>=0.2",
    ])  # fmt: skip
    return base


def save_prices(folder: Path) -> Path:
    """Save version 7 of a model with three inputs: features, float32 [?, 3], a city and an age."""
    module = tf.Module()
    specs = [
        tf.TensorSpec([None, 3], tf.float32, "features"),
        tf.TensorSpec([None], tf.string, "city"),
        tf.TensorSpec([None], tf.int32, "age"),
    ]
    module.price = tf.function(
        lambda features, city, age: {
            "price": tf.reduce_sum(features, 1) * 2 + tf.cast(age, tf.float32),
            "letters": tf.strings.length(city),
        },
        input_signature=specs,
    )
    tf.saved_model.save(module, str(folder / "prices/7"), signatures={"serving_default": module.price})
    return folder / "prices"


def write_configuration(folder: Path) -> Path:
    """Write the configuration of both models below `folder`, and return its file."""
    file = folder / "models.config"
    file.write_text(_CONFIGURATION.format(folder))
    return file


def save_picture(path: Path, digit: int) -> Path:
    """Save the last picture of a digit in scikit-learn's data as PNG."""
    digits = load_digits()
    pixels = digits.images[np.flatnonzero(digits.target == digit)[-1]]
    Image.fromarray((pixels / 16 * 255).round().astype(np.uint8)).save(path)
    return path


def break_version(base_path: Path, version: int) -> None:
    """Add a version that does not load."""
    folder = base_path / str(version)
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"no model")


def _run(command: list[str]) -> None:
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
