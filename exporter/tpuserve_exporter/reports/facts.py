"""The outcome, warnings and most important figures of an export: the top of the page, and a notebook cell."""

from collections.abc import Mapping
from typing import Any

from tpuserve_exporter.reports.parity_section import show_outputs
from tpuserve_exporter.terms.texts import difference, megabytes, percent, seconds
from tpuserve_formats.counted import counted
from tpuserve_formats.manifest.version import ManifestEvaluation
from tpuserve_formats.markup import Markup, element, join


def show_heading(document: Mapping[str, Any]) -> Markup:
    name = document.get("name") or "Export"
    if not document["ok"]:
        badge = element("span", "not published", class_="badge bad")
        return join((element("header", element("h1", name, " ", badge)), _show_error(document)))
    outcome = describe_outcome(document)
    badge = element("span", outcome, class_="badge good")
    return element("header", element("h1", name, " ", badge), _origin(document["manifest"]))


def describe_outcome(document: Mapping[str, Any]) -> str:
    """Describe the outcome of a successful export."""
    version = document["version"]
    if version is None:
        # The page in a published version was written before the version got its number.
        return "passed every check" if document["published"] else "checked, not published"
    return f"published as version {version}" if document["published"] else f"identical to version {version}"


def _origin(manifest: Mapping[str, Any]) -> Markup:
    source = manifest["source"]
    step = "" if source.get("step") is None else f" at step {source['step']:,}"
    built = (", built by ", element("code", source["builder"])) if source.get("builder") else ()
    exporter = f" · {manifest['created_at']} · tpuserve-exporter {manifest['exporter_version']}"
    return element(
        "p", f"From {source['kind']} ", element("b", source["name"]), step, *built, exporter, class_="origin"
    )


def _show_error(document: Mapping[str, Any]) -> Markup:
    code = f"{document['kind']}, exit code {document['exit_code']}"
    return element("section", element("p", document["error"]), element("p", code, class_="quiet"), class_="callout bad")


def show_warnings(document: Mapping[str, Any]) -> Markup:
    warnings = document.get("warnings") or ()
    if not warnings:
        return Markup()
    items = element("ul", *(element("li", warning) for warning in warnings))
    return element("section", element("h2", "Warnings"), items, class_="callout warn")


def show_facts(document: Mapping[str, Any]) -> Markup:
    if not document["ok"]:
        return Markup()
    facts = "".join(_tile(*fact) for fact in list_facts(document))
    return element("section", Markup(facts), class_="tiles", aria_label="Summary")


def _tile(name: str, value: str, note: str = "") -> Markup:
    return element(
        "div", element("span", name, class_="name"), element("b", value), element("span", note, class_="quiet")
    )


def list_facts(document: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return name, value and note of each important figure of a successful export."""
    manifest, parity = document["manifest"], document["manifest"]["parity"]
    allowed = f"tolerance {parity['atol']:g} + {parity['rtol']:g} * |expected|"
    top1 = [
        output["top1_agreement"]
        for signature in parity["signatures"].values()
        for output in signature["outputs"].values()
        if output["top1_agreement"] is not None
    ]
    sizes = sorted({size for one in manifest["signatures"].values() for size in one["batch_sizes"]})
    independent = all(one["rows_independent"] for one in manifest["signatures"].values())
    total = sum(file["size_bytes"] for file in manifest["files"].values())
    return [
        ("largest difference", difference(parity["max_abs_difference"]), allowed),
        *([("same first class", percent(min(top1)), "top-1 agreement with the source")] if top1 else []),
        *_metrics(manifest.get("evaluation")),
        ("batch sizes", ", ".join(map(str, sizes)) or "none", _rows_note(bool(sizes), independent)),
        ("compute dtype", manifest["compute_dtype"], f"checked with {parity['rows']} row(s)"),
        ("size", megabytes(total), f"{counted(len(manifest['files']), 'file')}"),
        ("warm-up", str(document["warmup_records"]), "requests run before the version serves"),
        *_served(document.get("serve_check")),
        ("time", seconds(document["seconds"]), "total"),
    ]


def _metrics(evaluation: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    if evaluation is None:
        return []
    found = ManifestEvaluation.model_validate(evaluation)
    return [
        (one.metric, one.shown, f"expected {one.expected}, {found.rows:,} row(s) of {found.file}")
        for one in found.metrics
    ]


def _served(checked: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    if checked is None:
        return []
    answers = f"{counted(checked['grpc_answers'], 'answer')} over gRPC, {checked['rest_answers']} over REST"
    return [("difference when served", difference(checked["max_abs_difference"]), answers)]


def _rows_note(batched: bool, independent: bool) -> str:
    if not batched:
        return "no batch dimension"
    return "requests share batches" if independent else "requests do not share batches"


_BOX = "border:1px solid;border-radius:8px;padding:.6em 1em;margin:.3em 0;max-width:60em;overflow-x:auto"
_QUIET = "opacity:.65"


def render_compact(document: Mapping[str, Any]) -> str:
    """Return the HTML for `document`, the report of a successful export."""
    where = "" if document["path"] is None else f" at {document['path']}"
    outcome = f"{describe_outcome(document)}{where}"
    facts = [_fact(name, value, note) for name, value, note in list_facts(document)]
    return element(
        "div",
        element("b", document["name"]),
        f" · {outcome}",
        *(element("div", f"! {warning}") for warning in document["warnings"]),
        element("table", element("tbody", *facts)),
        show_outputs(document["manifest"]["parity"]["signatures"]),
        style=_BOX,
    )


def _fact(name: str, value: str, note: str) -> Markup:
    cells = (element("td", name), element("td", element("b", value)), element("td", note, style=_QUIET))
    return element("tr", *cells)
