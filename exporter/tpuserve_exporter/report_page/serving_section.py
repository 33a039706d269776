"""The tensors of each signature, and snippets to serve the version and call it."""

import math
import shlex
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from tpuserve_formats.markup import Markup, element

# The most numbers in an example request in JSON.
_MOST_NUMBERS = 16
# The size of free dimensions in examples, except that of the rows.
_FREE = 4


def show_signatures(document: Mapping[str, Any]) -> Markup:
    if not document["ok"]:
        return Markup()
    signatures = document["manifest"]["signatures"]
    shown = (_show_signature(name, one) for name, one in signatures.items())
    return element("section", element("h2", "Signatures"), *shown)


def _show_signature(name: str, signature: Mapping[str, Any]) -> Markup:
    rows = [
        element("tr", element("td", way), element("td", tensor), element("td", _spec(spec)))
        for way, tensors in (("in", signature["inputs"]), ("out", signature["outputs"]))
        for tensor, spec in tensors.items()
    ]
    lengths = signature.get("sequence_buckets") or ()
    padded = f"Sequences are padded to {', '.join(map(str, lengths))}." if lengths else ""
    table = element("table", element("tbody", *rows), class_="tensors")
    return element(
        "div", element("h3", name), element("div", table, class_="scrolls"), element("p", padded, class_="quiet")
    )


def _spec(spec: Mapping[str, Any]) -> str:
    dims = "?" if spec["shape"] is None else ", ".join("?" if dim is None else str(dim) for dim in spec["shape"])
    return f"{spec['dtype']}[{dims}]"


def show_serving(document: Mapping[str, Any]) -> Markup:
    """Return snippets to serve and call the version, or an empty section if it was not published."""
    path = document.get("path")
    if not document["ok"] or path is None:
        return Markup()
    blocks = [element("div", element("h3", title), element("pre", text)) for title, text in _snippets(document)]
    return element("section", element("h2", "Serving and calling"), *blocks)


def _snippets(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    base, _, _ = str(document["path"]).rpartition("/")
    model = PurePath(base).name
    yield "Serve", f"tpuserve serve --model_name={shlex.quote(model)} --model_base_path={shlex.quote(base)}"
    signatures = document["manifest"]["signatures"]
    name = "serving_default" if "serving_default" in signatures else next(iter(signatures))
    inputs = signatures[name]["inputs"]
    if inputs:
        yield "Python", _python(model, name, inputs)
    instance = _instance(inputs)
    if instance is not None and signatures[name]["batch_sizes"]:
        body = f'{{"signature_name": "{name}", "instances": [{instance}]}}'
        yield "REST", f"curl -d {shlex.quote(body)} http://localhost:8501/v1/models/{shlex.quote(model)}:predict"


def _python(model: str, signature: str, inputs: Mapping[str, Any]) -> str:
    arrays = "".join(f"        {name!r}: {_array(spec)},\n" for name, spec in inputs.items())
    chosen = "" if signature == "serving_default" else f", signature_name={signature!r}"
    numpy_extra = "import ml_dtypes\n" if any(spec["dtype"] == "bfloat16" for spec in inputs.values()) else ""
    return (
        f"{numpy_extra}import numpy as np\nfrom tpuserve_client import Client\n\n"
        f'with Client("localhost:8500") as client:\n    inputs = {{\n{arrays}    }}\n'
        f"    print(dict(client.predict({model!r}, inputs{chosen})))"
    )


def _array(spec: Mapping[str, Any]) -> str:
    shape = _example_shape(spec)
    if spec["dtype"] == "string":
        return f'np.full({shape}, b"", object)'
    dtype = "ml_dtypes.bfloat16" if spec["dtype"] == "bfloat16" else f"np.{spec['dtype']}"
    return f"np.zeros({shape}, {'np.bool_' if spec['dtype'] == 'bool' else dtype})"


def _example_shape(spec: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of a tensor with one row."""
    dims = spec["shape"] or (None,)
    return tuple((1 if axis == 0 else _FREE) if dim is None else dim for axis, dim in enumerate(dims))


def _instance(inputs: Mapping[str, Any]) -> str | None:
    """Return one row in JSON, or None if it is too long to read."""
    shapes = {name: _example_shape(spec)[1:] for name, spec in inputs.items()}
    if not inputs or sum(math.prod(shape) for shape in shapes.values()) > _MOST_NUMBERS:
        return None
    values = {name: _nested(shape, _value(inputs[name]["dtype"])) for name, shape in shapes.items()}
    if len(values) == 1:
        return next(iter(values.values()))
    return "{" + ", ".join(f'"{name}": {value}' for name, value in values.items()) + "}"


def _value(dtype: str) -> str:
    if dtype == "string":
        return '""'
    return "false" if dtype == "bool" else "0" if "int" in dtype else "0.0"


def _nested(shape: tuple[int, ...], value: str) -> str:
    for size in reversed(shape):
        value = f"[{', '.join([value] * size)}]"
    return value
