"""Version directories with device programs that are lowered from shapes alone, as large as a preflight test needs."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = "assets.extra/tpuserve/programs/device"

# A shape and a dtype. The first dimension of an input is the number of rows.
Shape = tuple[tuple[int, ...], Any]


def write_version(
    version: Path,
    call: Callable[..., tuple[Any, ...]],
    inputs: Mapping[str, Shape],
    weights: Mapping[str, Shape],
    batch_sizes: Iterable[int],
    shard: Iterable[Mapping[str, Any]] = (),
) -> Path:
    """Write a version without SavedModel and weights.

    `call` takes the inputs and then the weights, and returns a tuple.
    """
    (version / FOLDER).mkdir(parents=True)
    programs = {f"{FOLDER}/b{size}.jaxexport": _lower(call, size, inputs, weights) for size in batch_sizes}
    files = {name: bytes(program.serialize()) for name, program in programs.items()}
    for name, written in files.items():
        (version / name).write_bytes(written)
    returned = next(iter(programs.values())).out_avals
    part = {
        "inputs": {name: {"dtype": np.dtype(dtype).name, "shape": [None, *shape[1:]]} for name, (shape, dtype) in
                   inputs.items()},
        "weights": list(weights),
        "outputs": {f"y{number}": {"dtype": aval.dtype.name, "shape": [None, *aval.shape[1:]]} for number, aval in
                    enumerate(returned)},
        "programs": [{"batch_size": size, "sequence_length": None, "file": name} for size, name in
                     zip(batch_sizes, files, strict=True)],
    }  # fmt: skip
    manifest = {
        "device": {"format_version": 1, "shard": list(shard), "parts": {"device": part}, "signatures": {}},
        "files": {
            name: {"sha256": hashlib.sha256(written).hexdigest(), "size_bytes": len(written)}
            for name, written in files.items()
        },
    }
    (version / "assets.extra/tpuserve/manifest.json").write_text(json.dumps(manifest))
    return version


def _lower(
    call: Callable[..., tuple[Any, ...]], size: int, inputs: Mapping[str, Shape], weights: Mapping[str, Shape]
) -> Any:  # noqa: ANN401 - jax.export.Exported, which is untyped here
    import jax

    shapes = [
        *(jax.ShapeDtypeStruct((size, *shape[1:]), dtype) for shape, dtype in inputs.values()),
        *(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in weights.values()),
    ]
    anywhere = [jax.export.DisabledSafetyCheck.platform()]
    return jax.export.export(jax.jit(call), platforms=("tpu",), disabled_checks=anywhere)(*shapes)


def write_classifier(version: Path, batch_sizes: Iterable[int] = (1, 8)) -> Path:
    """Write a version with two small layers."""
    import jax

    def call(x: Any, kernel: Any, bias: Any) -> tuple[Any, ...]:  # noqa: ANN401 - what jax traces with
        return (jax.nn.softmax(x @ kernel + bias),)

    weights = {"dense/kernel": ((64, 10), np.float32), "dense/bias": ((10,), np.float32)}
    return write_version(version, call, {"x": ((1, 64), np.float32)}, weights, batch_sizes)


def write_wide(version: Path, batch_sizes: Iterable[int] = (1024, 2048)) -> Path:
    """Write a version with rows of 4 MiB. A v5e can hold one of the larger batches, but not two."""

    def call(x: Any, kernel: Any) -> tuple[Any, ...]:  # noqa: ANN401 - what jax traces with
        return (x @ kernel,)

    weights = {"dense/kernel": ((2**20, 8), np.float32)}
    return write_version(version, call, {"x": ((1, 2**20), np.float32)}, weights, batch_sizes)


def write_mixed(version: Path) -> Path:
    """Write a version with arguments of many ranks and dtypes, including an unused argument."""
    import jax

    def call(x: Any, ids: Any, on: Any, kernel: Any, table: Any, filters: Any, scale: Any, unread: Any) -> Any:  # noqa: ANN401 - what jax traces with
        image = x[:, :16].reshape(x.shape[0], 4, 4, 1)
        convolved = jax.lax.conv_general_dilated(
            image, filters, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return x @ kernel * scale, table[ids], convolved.sum((1, 2)) * on[:, None]

    inputs = {"x": ((1, 100), np.float32), "ids": ((1,), np.int32), "on": ((1,), np.bool_)}
    weights = {
        "kernel": ((100, 7), np.float32), "table": ((1000, 3, 33), np.dtype("bfloat16")),
        "filters": ((3, 3, 1, 5), np.float32), "scale": ((), np.float32), "unread": ((300, 300), np.float32),
    }  # fmt: skip
    return write_version(version, call, inputs, weights, (5,))


def write_lookup(version: Path, shard: Iterable[Mapping[str, Any]] = ()) -> Path:
    """Write a version with a table of 40 GiB, and a layer over the sum of some of its rows."""
    import jax

    def call(ids: Any, table: Any, kernel: Any) -> tuple[Any, ...]:  # noqa: ANN401 - what jax traces with
        return (jax.nn.softmax(table[ids].sum(1) @ kernel),)

    weights = {"embedding/table": ((10 * 2**20, 1024), np.float32), "dense/kernel": ((1024, 10), np.float32)}
    return write_version(version, call, {"ids": ((1, 16), np.int32)}, weights, (8,), shard)
