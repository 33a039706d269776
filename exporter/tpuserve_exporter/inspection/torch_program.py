"""Reads a `.pt2` file of torch.export.save: a JSON description of the program, and the list of its weights."""

import json
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tpuserve_exporter.errors import SourceUnreadable, reason_of
from tpuserve_exporter.inspection.contents import Contents, Operations, StoredArray
from tpuserve_exporter.terms.signature import Signature, TensorSpec

_WEIGHTS = "/data/weights/model_weights_config.json"
_PROGRAM = "/models/model.json"
# torch._export.serde.schema.ScalarType, which starts at 1.
_DTYPES = (
    "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64",
    "complex128", "bool", "bfloat16",
)  # fmt: skip


def inspect_torch_program(path: Path) -> Contents:
    """Return the contents of a `.pt2` file. Raises SourceUnreadable."""
    try:
        with zipfile.ZipFile(path) as archive:
            files = {part.filename: part.file_size for part in archive.infolist()}
            weights, program = (_read(archive, files, ending) for ending in (_WEIGHTS, _PROGRAM))
        graph = program["graph_module"]["graph"]
        return Contents(
            kind="PyTorch program (torch.export)",
            name=path.name,
            signatures={"forward": _read_signature(program["graph_module"]["signature"], graph["tensor_values"])},
            arrays=tuple(_list_weights(weights["config"])),
            operations=Operations(_count(graph["nodes"]), {}, {}, {}),
            files=files,
        )
    except (OSError, ValueError, LookupError, TypeError, zipfile.BadZipFile) as error:
        raise SourceUnreadable(
            f"{path.name} is damaged or not written by torch.export.save: {type(error).__name__}: {reason_of(error)}"
        ) from error


def _read(archive: zipfile.ZipFile, files: Mapping[str, int], ending: str) -> Any:  # noqa: ANN401 - any JSON value
    name = next((name for name in files if name.endswith(ending)), None)
    if name is None:
        raise LookupError(f"{ending[1:]} is missing")
    return json.loads(archive.read(name))


def _count(nodes: list[Mapping[str, Any]]) -> dict[str, int]:
    return dict(Counter(str(node["target"]).removeprefix("torch.ops.") for node in nodes).most_common())


def _list_weights(config: Mapping[str, Any]) -> Iterator[StoredArray]:
    for name, one in config.items():
        spec = _spec(one["tensor_meta"])
        shape = None if spec.shape is None else tuple(-1 if dim is None else dim for dim in spec.shape)
        yield StoredArray(name, spec.dtype, shape)


def _spec(meta: Mapping[str, Any]) -> TensorSpec:
    """Return dtype and shape. A size that is an expression is a free dimension."""
    dims = tuple(size.get("as_int") for size in meta["sizes"])
    return TensorSpec(_DTYPES[meta["dtype"] - 1], dims)


def _read_signature(signature: Mapping[str, Any], values: Mapping[str, Any]) -> Signature:
    inputs = [one["user_input"]["arg"] for one in signature["input_specs"] if "user_input" in one]
    outputs = [one["user_output"]["arg"] for one in signature["output_specs"] if "user_output" in one]
    return Signature("forward", _named(inputs, values), _named(outputs, values))


def _named(arguments: list[Mapping[str, Any]], values: Mapping[str, Any]) -> dict[str, TensorSpec]:
    names = [one["as_tensor"]["name"] for one in arguments if "as_tensor" in one]
    return {name: _spec(values[name]) for name in names}
