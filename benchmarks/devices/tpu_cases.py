"""The models of the benchmark tpu_models: builder, export options and requests of each."""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Tensors: TypeAlias = Mapping[str, Array]

BUILDERS = "benchmarks.devices.tpu_builders"
# Topologies by family: the smallest, and one of four chips.
ONE_CHIP = {"v4": "v4:1x1x1", "v5e": "v5e:1x1", "v5p": "v5p:1x1x1", "v6e": "v6e:1x1", "tpu7x": "tpu7x:1x1x1"}
FOUR_CHIPS = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "tpu7x": "tpu7x:2x2x1"}
# With many layers, outputs of other kernels differ slightly more than those of a small model.
_DEEP = ("--atol", "1e-3", "--rtol", "1e-3")


@dataclass(frozen=True, slots=True)
class TpuCase:
    """A model. `requests` have numbers of rows and lengths without a matching program.

    `mesh` applies to the check and the server, which then uses the same number of CPU devices. `check_rows` is for
    models whose inputs cannot be random.
    """

    name: str
    title: str
    builder: str
    options: tuple[str, ...]
    requests: Callable[[], list[Tensors]]
    topologies: Mapping[str, str]
    mesh: str = ""
    devices: int = 1
    check_rows: Callable[[], Tensors] | None = None

    @property
    def model(self) -> str:
        """Value of `--model`."""
        return self.builder if ":" in self.builder else f"{BUILDERS}:{self.builder}"


def cases(quick: bool) -> list[TpuCase]:
    """Return all cases. `quick` replaces BERT by a small encoder, and uses one batch size for large models."""
    sizes = "8" if quick else "1,8"
    return [
        TpuCase(
            "digits",
            "CNN of digits",
            "examples.digits.model:build",
            ("--batch-sizes", "1,8,32"),
            _digits,
            ONE_CHIP,
        ),
        TpuCase("resnet50", "ResNet-50", "resnet50", ("--batch-sizes", sizes, *_DEEP), _pictures, ONE_CHIP),
        TpuCase(
            "bert",
            "encoder of 2 layers" if quick else "BERT base, 2 lengths",
            "bert_tiny" if quick else "bert_base",
            ("--batch-sizes", sizes, "--sequence-buckets", "64,128", *_DEEP),
            _texts,
            ONE_CHIP,
        ),
        TpuCase("lstm", "LSTM of 2 layers", "lstm", ("--batch-sizes", "1,8,32"), _steps, ONE_CHIP),
        TpuCase(
            "embedding",
            "embedding on 4 chips",
            "embedding",
            ("--batch-sizes", "1,8,32", "--shard", "^table/embeddings$=model,-"),
            _ids,
            FOUR_CHIPS,
            mesh="model=4",
            devices=4,
        ),
        TpuCase(
            "photo",
            "JPEG and vocabulary",
            "photo",
            ("--batch-sizes", "1,8", "--signature", f"serving_default={BUILDERS}:photo_of_place"),
            _photos,
            ONE_CHIP,
            check_rows=lambda: _photo(8, seed=1),
        ),
    ]


def _digits() -> list[Tensors]:
    from examples.digits.data import load

    _, held_out = load()
    return [{"image": held_out.images[:rows]} for rows in (1, 21)]


def _pictures() -> list[Tensors]:
    return [{"image": np.random.default_rng(rows).random((rows, 224, 224, 3), np.float32)} for rows in (1, 3)]


def _texts() -> list[Tensors]:
    return [_numbers("ids", (rows, length), 30522) for rows, length in ((1, 40), (3, 100))]


def _steps() -> list[Tensors]:
    return [{"steps": np.random.default_rng(rows).random((rows, 32, 64), np.float32)} for rows in (1, 11)]


def _ids() -> list[Tensors]:
    return [_numbers("ids", (rows, 16), 2**18) for rows in (1, 11)]


def _photos() -> list[Tensors]:
    return [_photo(rows, seed=rows + 1) for rows in (1, 5)]


def _numbers(name: str, shape: tuple[int, ...], below: int) -> Tensors:
    return {name: np.random.default_rng(shape[0]).integers(1, below, shape).astype(np.int32)}


def _photo(rows: int, seed: int) -> Tensors:
    """Return JPEG files of noise, and words, one of which is not in the vocabulary."""
    from PIL import Image

    random = np.random.default_rng(seed)
    files = []
    for pixels in random.integers(0, 256, (rows, 32, 32, 3), np.uint8):
        written = io.BytesIO()
        Image.fromarray(pixels).save(written, "jpeg")
        files.append(written.getvalue())
    return {
        "photo": np.array(files, object),
        "place": np.array([random.choice(["harbour", "kitchen", "moon"]).encode() for _ in range(rows)], object),
    }
