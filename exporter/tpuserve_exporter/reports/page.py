"""The report of an export as one self-contained HTML page."""

import importlib.resources
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal, TypeAlias

from tpuserve_exporter.reports.evaluation_section import show_evaluation
from tpuserve_exporter.reports.facts import show_facts, show_heading, show_warnings
from tpuserve_exporter.reports.parity_section import show_parity, show_tables
from tpuserve_exporter.reports.preflight_section import show_preflight
from tpuserve_exporter.terms.texts import megabytes, seconds
from tpuserve_formats.manifest.version import ManifestOrigin
from tpuserve_formats.markup import Markup, element, join
from tpuserve_formats.page import render_document

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


@dataclass(frozen=True, slots=True)
class Bar:
    """One row. `value` is the bar's length relative to the others, or None without a bar. `text` is its number."""

    name: str
    value: float | None
    text: str
    bad: bool = False


def draw_bars(bars: Sequence[Bar], names: Literal["text", "code"] = "text") -> Markup:
    longest = max((bar.value or 0.0 for bar in bars), default=0.0) or 1.0
    return element("table", element("tbody", *(_row(bar, longest) for bar in bars)), class_=f"bars {names}")


def _row(bar: Bar, longest: float) -> Markup:
    kind = "bar bad" if bar.bad else "bar"
    drawn = [] if bar.value is None else [element("span", class_=kind, style=f"width:{100 * bar.value / longest:.1f}%")]
    return element("tr", element("th", bar.name, *drawn, scope="row"), element("td", bar.text))


def draw_largest(sizes: Mapping[str, int], most: int) -> Markup:
    """Draw bars for the `most` largest sizes in bytes, and a row with the total of the others."""
    ranked = sorted(sizes.items(), key=lambda one: -one[1])
    bars = [Bar(name, size, megabytes(size)) for name, size in ranked[:most]]
    rest = ranked[most:]
    if rest:
        bars.append(Bar(f"{len(rest)} more", None, megabytes(sum(size for _, size in rest))))
    return draw_bars(bars, names="code")


# Groups with more rows start collapsed, except those that made the export fail.
_MOST_OPEN = 12
_MOST_BARS = 10
# The fate of variables in a model that the exporter copies unchanged.
_SERVED = "served"
# Column titles by their number.
_HEADINGS = {
    1: ("name",),
    2: ("name", "origin"),
    3: ("name", "model", "origin"),
    4: ("name", "model", "checkpoint", "origin"),
}
# Values of the version that are no variables of the comparison, such as tables.
_VALUES = "other values"
_GOOD = ("matched", "cast", _SERVED, _VALUES)
_SPEC = re.compile(r"(?P<dtype>[a-z]+)(?P<bits>\d*)\w*\[(?P<shape>[\d, ]*)\]")


def show_variables(document: Mapping[str, Any]) -> Markup:
    restore = document.get("restore") or _served(document.get("variables") or ())
    if restore is None:
        return Markup()
    groups = _group(restore, document.get("provenance") or ())
    counted = ", ".join(f"{len(rows)} {fate}" for fate, rows in groups.items())
    search = element(
        "input", type="search", id="search", placeholder="Find a variable", aria_label="Find a variable", hidden=True
    )
    return element(
        "section",
        element("h2", "Variables"),
        element("p", counted or "none", class_="quiet"),
        *(element("p", str(one)) for one in _read_provenance(document)),
        search,
        *(_show_group(fate, rows) for fate, rows in groups.items()),
        _show_largest(restore["variables"]),
    )


def _served(variables: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return a restore document for a source that the exporter copies without a restore, or None without variables."""
    if not variables:
        return None
    entries = [{"fate": _SERVED, "checkpoint": None, "allowed": False} | dict(one) for one in variables]
    return {"variables": entries, "optimizer_state": (), "bookkeeping": (), "other_models": {}}


def _read_provenance(document: Mapping[str, Any]) -> list[ManifestOrigin]:
    """Return the numbers of values by their origin. A failed export has none."""
    source = document["manifest"]["source"] if document["ok"] else {}
    return [ManifestOrigin.model_validate(one) for one in source.get("provenance") or ()]


def _group(restore: Mapping[str, Any], provenance: Sequence[Mapping[str, Any]]) -> dict[str, list[Sequence[str]]]:
    """Return rows (name, model, checkpoint, origin) by fate. Variables that do not fit come first."""
    groups: dict[str, list[Sequence[str]]] = {}
    origins = {one["name"]: _describe_origin(one) for one in provenance}
    for one in restore["variables"]:
        fate = f"{one['fate']}, allowed" if one["allowed"] else one["fate"]
        sides = (one["model"] or "-", one["checkpoint"] or "-")
        shown = sides[:1] if fate == _SERVED else sides
        groups.setdefault(fate, []).append((one["name"], *shown, origins.pop(one["name"], "-")))
    if origins:
        groups[_VALUES] = list(origins.items())
    ordered = dict(sorted(groups.items(), key=lambda group: group[0] in _GOOD))
    apart = {
        "optimizer state, not served": restore["optimizer_state"],
        "bookkeeping, not served": restore["bookkeeping"],
        **{f"of '{root}', not served": names for root, names in restore["other_models"].items()},
    }
    return ordered | {fate: [(name,) for name in names] for fate, names in apart.items() if names}


def _describe_origin(origin: Mapping[str, Any]) -> str:
    """Describe the origin by its kind, and by the value's stored name or the part that holds it."""
    return " ".join(filter(None, (origin["kind"], origin["stored"] or origin["part"])))


def _show_group(fate: str, rows: Sequence[Sequence[str]]) -> Markup:
    bad = fate not in _GOOD and "allowed" not in fate and "not served" not in fate
    summary = element("summary", element("span", fate, class_="bad" if bad else None), f" ({len(rows)})")
    headings = _HEADINGS[len(rows[0])]
    head = element("tr", *(element("th", heading, scope="col") for heading in headings))
    body = [element("tr", *(element("td", cell) for cell in row)) for row in rows]
    table = element("table", element("thead", head), element("tbody", *body), class_="variables")
    return element("details", summary, element("div", table, class_="scrolls"), open=bad or len(rows) <= _MOST_OPEN)


def _show_largest(variables: Sequence[Mapping[str, Any]]) -> Markup:
    sizes = {one["name"]: size for one in variables if (size := _size_bytes(one["model"] or ""))}
    if len(sizes) < 2:
        return Markup()
    heading = element("h3", f"Largest variables, of {megabytes(sum(sizes.values()))} in total")
    return join((heading, draw_largest(sizes, _MOST_BARS)))


def _size_bytes(spec: str) -> int:
    """Return the bytes of `float32[3, 3, 1, 32]`, or 0 for a dtype or shape without a fixed size, such as strings."""
    found = _SPEC.fullmatch(spec)
    if found is None or (not found["bits"] and found["dtype"] != "bool"):
        return 0
    dims = [int(dim) for dim in found["shape"].split(",") if dim.strip()]
    return max(int(found["bits"] or 8) // 8, 1) * math.prod(dims)


_MOST_RANKED = 3


def show_samples(document: Mapping[str, Any]) -> Markup:
    samples = document.get("samples") or ()
    if not samples:
        return Markup()
    cards = [_card(sample) for sample in samples]
    return element("section", element("h2", "Sample answers"), element("div", *cards, class_="samples"))


def _card(sample: Mapping[str, Any]) -> Markup:
    return element("article", *_input(sample), *_answer(sample), *_verdict(sample), class_="sample")


def _input(sample: Mapping[str, Any]) -> Iterator[Markup]:
    if image := sample.get("image"):
        yield element("img", src=image, alt=sample["name"])
    if text := sample.get("text"):
        yield element("p", text, class_="given")
    if sample.get("image") or text != sample["name"]:
        yield element("p", f"{sample['name']} · {sample['signature']}", class_="quiet")
    else:
        yield element("p", sample["signature"], class_="quiet")


def _answer(sample: Mapping[str, Any]) -> Iterator[Markup]:
    prediction = sample["prediction"]
    if top := prediction["top"]:
        rows = [_ranked(one) for one in top[:_MOST_RANKED]]
        yield element("table", element("tbody", *rows), class_="bars")
    for name, value in () if top else prediction["outputs"].items():
        yield element("p", element("b", name), " ", element("code", value))


def _ranked(one: Mapping[str, Any]) -> Markup:
    label = one["label"] or f"class {one['index']}"
    score = one["score"]
    if score is None:
        return element("tr", element("th", label, scope="row"), element("td", "not finite"))
    share = score if 0 <= score <= 1 else 0.0
    bar = element("span", class_="bar", style=f"width:{100 * share:.0f}%")
    return element("tr", element("th", label, bar, scope="row"), element("td", f"{score:.3g}"))


def _verdict(sample: Mapping[str, Any]) -> Iterator[Markup]:
    if sample["passed"] is None:
        return
    verdict, kind = ("correct", "good") if sample["passed"] else ("wrong", "bad")
    expected = f" expected {sample['expected']}"
    yield element("p", element("span", verdict, class_=f"badge {kind}"), expected)


_MOST_FILES = 8


def show_files(document: Mapping[str, Any]) -> Markup:
    if not document["ok"]:
        return Markup()
    sizes = {name: one["size_bytes"] for name, one in document["manifest"]["files"].items()}
    return element("section", element("h2", "Files"), draw_largest(sizes, _MOST_FILES))


def show_steps(document: Mapping[str, Any]) -> Markup:
    steps = document.get("steps") or ()
    if not steps:
        return Markup()
    bars = [_describe(step) for step in steps]
    return element("section", element("h2", "Steps"), draw_bars(bars))


def _describe(step: Mapping[str, Any]) -> Bar:
    title = f"{step['title']} (failed)" if step.get("failed") else step["title"]
    return Bar(title, step["seconds"], seconds(step["seconds"]), bad=bool(step.get("failed")))


Document: TypeAlias = Mapping[str, Any]


def render_page(document: Document) -> str:
    """Return the page for `document`, the JSON report of a published or failed export."""
    title = f"Export of {document.get('name') or 'a model'}"
    written_at = document["manifest"]["created_at"] if document["ok"] else ""
    return render_document(
        title, _sections(document), style=_read("page.css"), script=_read("page.js"), written_at=written_at
    )


def _sections(document: Document) -> list[Markup]:
    shown = [
        show_heading(document),
        show_warnings(document),
        show_facts(document),
        show_evaluation(document),
        show_samples(document),
        show_parity(document),
        show_tables(document),
        show_preflight(document),
        show_signatures(document),
        show_variables(document),
        element("div", show_files(document), show_steps(document), class_="pair"),
        show_serving(document),
    ]
    return [section for section in shown if section]


def _read(name: str) -> Markup:
    return Markup(importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))
