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
        Case("Something is left out", 2, "checkpoints"),
        Case("There is no such option", 2, f"{_EXPORT} --modle models:scorer"),
        Case("There is no such kind of source", 2, f"{_EXPORT} --from tensorflow"),
        Case("A model's argument has no value", 2, f"{_EXPORT} --model models:scorer --model-arg units"),
        Case("A pattern is not closed", 2, f"{_EXPORT} --rename '^(encoder/=backbone/'"),
        Case("Batch sizes are no numbers", 2, f"{_EXPORT} --batch-sizes 1,2,x"),
        Case("The version is no number", 2, f"{_EXPORT} --version v3"),
        Case("An input is not understood", 2, f"{_EXPORT} --input 'features:float32[batch,3'"),
        Case("There is no such kind of signature", 2, f"{_EXPORT} --signature photo=image"),
        Case("A signature has no such option", 2, f"{_EXPORT} --signature photo=image_bytes,sizes=28x28"),
        Case("A signature's option cannot be that", 2, f"{_EXPORT} --signature photo=image_bytes,crop=224"),
        Case("An example expects nothing", 2, f"{_EXPORT} --example 'text:a good film'"),
        Case("The file of an example is not there", 2, f"{_EXPORT} --example photo.jpg=tabby"),
        Case("An option goes with another", 2, f"{_EXPORT} --pad-value ids=1"),
        Case("Samples are not there", 2, f"{_EXPORT} --check samples.npz"),
        Case("A report cannot be written", 2, f"{_EXPORT} --report reports/scorer.html"),
        Case("There is no such store", 2, "checkpoints hdfs://cluster/models/scorer"),
    ),
)  # fmt: skip
