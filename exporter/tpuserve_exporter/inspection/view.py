"""Prints contents as tables on a terminal, and without colours elsewhere."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tpuserve_exporter.inspection.contents import Contents, Operations, StoredArray
from tpuserve_exporter.terms.texts import difference, megabytes, percent
from tpuserve_formats.counted import counted
from tpuserve_formats.manifest.device import describe_sizes
from tpuserve_formats.manifest.version import ManifestEvaluation, ManifestOrigin

_MOST_ARRAYS = 20
_MOST_OPERATIONS = 12
_MOST_FILES = 10
# Parts that are not served.
_APART = ("average", "optimizer", "other")


def print_contents(console: Console, contents: Contents, everything: bool) -> None:
    """Print the contents. `everything` lists all variables, operations and files."""
    console.print(Text(contents.name, style="bold") + Text(f"  {contents.kind}", style="dim"))
    _print_facts(console, dict(contents.facts) | dict(_manifest_facts(contents.manifest or {})))
    for signature in contents.signatures.values():
        console.print(Text(f"  {signature}"), soft_wrap=True)
    if contents.arrays:
        _print_arrays(console, contents.arrays, everything)
    if contents.operations is not None:
        _print_operations(console, contents.operations, everything)
    if contents.files:
        _print_files(console, contents.files, everything)
    for refused in contents.refused:
        console.print(Text(f"! servers refuse this operation: {refused}", style="yellow"), soft_wrap=True)
    for note in contents.notes:
        console.print(Text(f"! {note}", style="yellow"), soft_wrap=True)
    for problem in contents.problems:
        console.print(Text(f"✗ {problem}", style="red"), soft_wrap=True)


def _print_facts(console: Console, facts: Mapping[str, str]) -> None:
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        grid.add_row(Text(f"  {name}", style="dim"), Text(value, overflow="fold"))
    if facts:
        console.print(grid)


def _manifest_facts(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the facts of a manifest from any exporter version. Omit missing ones."""
    source, parity = manifest.get("source") or {}, manifest.get("parity") or {}
    if source:
        step = "" if source.get("step") is None else f" at step {source['step']}"
        built = f", built by {source['builder']}" if source.get("builder") else ""
        yield "exported from", f"{source.get('kind')} {source.get('name')}{step}{built}"
        if provenance := source.get("provenance"):
            yield "provenance", "; ".join(str(ManifestOrigin.model_validate(one)) for one in provenance)
        yield "exported", f"{manifest.get('created_at')} by tpuserve-exporter {manifest.get('exporter_version')}"
    if manifest.get("fingerprint"):
        yield "fingerprint", str(manifest["fingerprint"])
    if "compute_dtype" in manifest:
        yield "compute dtype", str(manifest["compute_dtype"])
    for name, one in (manifest.get("signatures") or {}).items():
        shared = "" if one.get("rows_independent") else "; requests do not share batches"
        yield f"batch sizes of {name}", f"{', '.join(map(str, one.get('batch_sizes') or ())) or 'none'}{shared}"
    yield from _device_facts(manifest.get("device") or {}, manifest.get("signatures") or {})
    if evaluation := manifest.get("evaluation"):
        found = ManifestEvaluation.model_validate(evaluation)
        yield from ((one.metric, one.describe(found)) for one in found.metrics)
    if parity:
        allowed = f"tolerance {parity.get('atol')} + {parity.get('rtol')} * |expected|"
        yield "largest difference", f"{difference(parity.get('max_abs_difference'))} ({allowed})"
    for name, signature in (parity.get("signatures") or {}).items():
        for output, one in signature["outputs"].items():
            best = "" if one["top1_agreement"] is None else f", top-1 {percent(one['top1_agreement'])}"
            yield f"{name}.{output}", f"mean difference {difference(one['mean_abs_difference'])}{best}"


def _device_facts(device: Mapping[str, Any], signatures: Iterable[str]) -> Iterator[tuple[str, str]]:
    if not device:
        return
    programs = [program for part in device["parts"].values() for program in part["programs"]]
    sizes = describe_sizes((one.get("batch_size"), one.get("sequence_length")) for one in programs)
    yield "device programs", f"{sizes}; lowered with jax {device['lowered_with'].get('jax')}"
    if without := [name for name in signatures if name not in device["signatures"]]:
        yield "without programs", f"{', '.join(without)} (TensorFlow on the CPU)"
    for together in device.get("preflight_together") or ():
        mesh = ",".join(f"{axis}={size}" for axis, size in together["mesh"].items() if size > 1)
        spread = f", over --mesh {mesh}" if mesh else ""
        yield f"on {together['topology']}", f"all programs together: {together['verdict']}{spread}"


def _table(title: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", justify="right" if column in ("size", "count") else "left")
    return table


def _print_arrays(console: Console, arrays: Iterable[StoredArray], everything: bool) -> None:
    """Print the largest arrays of each served part, and totals of the other parts. Print all with `everything`."""
    parts: dict[str, list[StoredArray]] = {}
    for array in arrays:
        parts.setdefault(array.part, []).append(array)
    for part, members in sorted(parts.items(), key=lambda one: one[0] in _APART):
        title = f"{len(members)} variable(s) of {part}, {megabytes(sum(one.size_bytes or 0 for one in members))}"
        if part in _APART and not everything:
            console.print(Text(f"{title} (--all lists them)", style="dim"))
        else:
            _print_part(console, title, members, everything)


def _print_part(console: Console, title: str, members: list[StoredArray], everything: bool) -> None:
    table = _table(title, "name", "variable", "size")
    shown = members if everything else _largest(members)
    for one in shown:
        size = "" if one.size_bytes is None else megabytes(one.size_bytes)
        table.add_row(Text(one.name), Text(str(one)), size)
    if len(shown) < len(members):
        table.add_row(Text(f"and {len(members) - len(shown)} smaller (--all lists them)", style="dim"))
    console.print(table)


def _largest(arrays: list[StoredArray]) -> list[StoredArray]:
    kept = {id(one) for one in sorted(arrays, key=lambda one: -(one.size_bytes or 0))[:_MOST_ARRAYS]}
    return [one for one in arrays if id(one) in kept]


def _print_operations(console: Console, operations: Operations, everything: bool) -> None:
    counts = operations.counts
    shown = list(counts.items()) if everything else list(counts.items())[:_MOST_OPERATIONS]
    rest = (
        f", and {counted(len(counts) - len(shown), 'other kind')} (--all lists them)"
        if len(shown) < len(counts)
        else ""
    )
    console.print(
        Text(f"\n{counted(sum(counts.values()), 'operation')} of {counted(len(counts), 'kind')}", style="bold")
    )
    console.print(Text(f"  {_count(dict(shown))}{rest}"), soft_wrap=True)
    for title, found in (
        ("TPU operations", operations.tpu),
        ("host operations (not supported by the TPU compiler)", operations.host),
        ("operations unknown to this TensorFlow", operations.unknown),
    ):
        if found:
            console.print(Text(f"  {title}: ", style="yellow") + Text(_count(found)), soft_wrap=True)


def _count(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _print_files(console: Console, files: Mapping[str, int], everything: bool) -> None:
    ranked = sorted(files.items(), key=lambda one: -one[1])
    shown = ranked if everything else ranked[:_MOST_FILES]
    table = _table(f"{len(files)} file(s), {megabytes(sum(files.values()))}", "file", "size")
    for name, size in shown:
        table.add_row(Text(name), megabytes(size))
    if len(shown) < len(ranked):
        table.add_row(Text(f"and {len(ranked) - len(shown)} smaller (--all lists them)", style="dim"))
    console.print(table)
