"""Commands that are wrong for every source."""

from pathlib import Path

from tests.exporter.bad_inputs.case import Case, Section

_EXPORT = "checkpoints models/scorer"


def make(folder: Path) -> None:
    """Write no sources, because the commands fail before they read any."""


SECTION = Section(
    "Wrong usage",
    "The exporter checks options before it reads the source and before it starts TensorFlow.",
    make,
    (
        Case("Missing argument", 2, "checkpoints"),
        Case("Unknown option", 2, f"{_EXPORT} --modle models:scorer"),
        Case("Unknown kind of source", 2, f"{_EXPORT} --from tensorflow"),
        Case("Model argument without a value", 2, f"{_EXPORT} --model models:scorer --model-arg units"),
        Case("Invalid regular expression", 2, f"{_EXPORT} --rename '^(encoder/=backbone/'"),
        Case("Invalid batch sizes", 2, f"{_EXPORT} --batch-sizes 1,2,x"),
        Case("Invalid version number", 2, f"{_EXPORT} --version v3"),
        Case("Invalid input", 2, f"{_EXPORT} --input 'features:float32[batch,3'"),
        Case("Unknown kind of signature", 2, f"{_EXPORT} --signature photo=image"),
        Case("Unknown option of a signature", 2, f"{_EXPORT} --signature photo=image_bytes,sizes=28x28"),
        Case("Invalid option of a signature", 2, f"{_EXPORT} --signature photo=image_bytes,crop=224"),
        Case("Example without an expected answer", 2, f"{_EXPORT} --example 'text:a good film'"),
        Case("Missing file of an example", 2, f"{_EXPORT} --example photo.jpg=tabby"),
        Case("Option that needs another option", 2, f"{_EXPORT} --pad-value ids=1"),
        Case("Missing samples", 2, f"{_EXPORT} --check samples.npz"),
        Case("Report in an unwritable directory", 2, f"{_EXPORT} --report reports/scorer.html"),
        Case("Unknown store", 2, "checkpoints hdfs://cluster/models/scorer"),
    ),
)  # fmt: skip
