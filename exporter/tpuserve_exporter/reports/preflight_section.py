"""The preflight's result for each program, on the page and on a terminal."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tpuserve_exporter.terms.texts import megabytes, seconds
from tpuserve_formats.markup import Markup, element

if TYPE_CHECKING:
    from tpuserve_exporter.programs.preflight import PreflightReport

Row: TypeAlias = Mapping[str, Any]
# Topology, mesh axes (data, model), and a program's HBM limit on one device in bytes.
Place: TypeAlias = tuple[str, int, int, int]

COLUMNS = ("batch", "verdict", "HBM", "compiled in", "flops", "bytes", "latency, estimated", "layout", "padding")
_GIB = 2**30
_INTRO = (
    "The TPU's own compiler compiled every program from shapes, without a TPU. Sizes are per device. Latencies are "
    "estimates for the device alone, without communication between devices. The lower bound is peak arithmetic, or "
    "reading and writing every byte once. The upper bound counts all bytes that the compiler reports. Layout is the "
    "memory of arguments and outputs divided by their own size. Padding is the largest share of padding in a batch."
)


def show_preflight(document: Mapping[str, Any]) -> Markup:
    """Return the section from a published version's manifest, or from a failed export's details."""
    rows = _find(document, "preflight")
    if not rows:
        return Markup()
    together = list_together(_find(document, "preflight_together"))
    tables = [_show_place(place, ones, together.pop(place[:3], "")) for place, ones in groupby(rows, key=place_of)]
    advice = [element("p", sentence) for sentence in document.get("preflight_advice") or ()]
    return element("section", element("h2", "TPU programs"), element("p", _INTRO, class_="quiet"), *tables, *advice)


def _find(document: Mapping[str, Any], name: str) -> list[Row]:
    holder = (document["manifest"].get("device") or {}) if document["ok"] else document
    return list(holder.get(name) or ())


def list_together(rows: Iterable[Row]) -> dict[tuple[str, int, int], str]:
    """Return a sentence on the memory of all programs together, by topology and mesh, if it is known."""
    return {
        (row["topology"], row["mesh"]["data"], row["mesh"]["model"]): _describe_together(row)
        for row in rows
        if row["hbm_bytes"]["needed"] is not None
    }


def _describe_together(row: Row) -> str:
    sizes, number = row["hbm_bytes"], row["side_by_side"]
    parts = (
        f"weights {hbm(sizes['weights'])}, two batches {hbm(sizes['batches'])}, "
        f"temporaries {hbm(sizes['temporary'])}, code {hbm(sizes['code'])}"
    )
    head = f"All programs together: {row['verdict']}, {hbm(sizes['needed'])} of {hbm(sizes['available'])} ({parts})."
    if number == 0:
        return head
    if number == 1:
        return f"{head} A second such version does not fit, and a change of versions needs two."
    return f"{head} {number:,} such versions fit, and a change of versions needs two."


def place_of(row: Row) -> Place:
    return row["topology"], row["mesh"]["data"], row["mesh"]["model"], row["hbm_bytes"]["available"]


def describe_place(place: Place) -> str:
    """Return the place as text: `v5e:2x2, --mesh model=4: 15.75 GiB a device`."""
    topology, data, model, available = place
    axes = ",".join(f"{axis}={size}" for axis, size in (("data", data), ("model", model)) if size > 1)
    mesh = f", --mesh {axes}" if axes else ", one device"
    return f"{topology}{mesh}: {hbm(available)}{' per device' if data * model > 1 else ''}"


def cells(row: Row) -> tuple[str, ...]:
    """Return the cells of a row in the order of COLUMNS."""
    sizes = [str(size) for size in (row["batch_size"], row["sequence_length"]) if size is not None]
    bucket = " x ".join(sizes) or "fixed"
    if row["latency_s_estimate"] is None:
        return (bucket, row["reason"], *[""] * (len(COLUMNS) - 2))
    lower, upper = row["latency_s_estimate"]
    wasted = row["rows_padding_at_most"]
    return (
        bucket,
        row["reason"],
        hbm(row["hbm_bytes"]["needed"]),
        seconds(row["compile_s"]),
        _flops(row["flops"]),
        megabytes(row["bytes_accessed"]),
        f"{_latency(lower)} to {_latency(upper)}",
        "-" if row["layout_padding"] is None else f"{row['layout_padding']:.2f} x",
        "-" if wasted is None else f"<= {100 * wasted:.0f} %",
    )


def _show_place(place: Place, rows: Iterable[Row], together: str) -> Markup:
    head = element("tr", *(element("th", name, scope="col") for name in COLUMNS))
    body = [element("tr", *(element("td", text) for text in cells(row))) for row in rows]
    table = element("table", element("thead", head), element("tbody", *body), class_="numbers")
    sentence = [element("p", together)] if together else []
    return element("div", element("h3", describe_place(place)), element("div", table, class_="scrolls"), *sentence)


def hbm(size_bytes: float) -> str:
    """Return a size in the compiler's binary units: `15.75 GiB`."""
    if size_bytes >= _GIB / 10:
        return f"{size_bytes / _GIB:.2f} GiB"
    return f"{size_bytes / 2**20:.1f} MiB" if size_bytes >= 2**20 / 10 else f"{size_bytes / 2**10:.1f} KiB"


def _flops(value: float | None) -> str:
    if value is None:
        return "unknown"
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f}"


def _latency(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"


_PASSED = "compiles and fits"
_NOTE = "Latencies are estimates from flops and bytes, without communication between devices. No TPU was used."
# The terminal width that a table needs, in columns.
_TABLE_WIDTH = 118


def print_preflight(console: Console, report: "PreflightReport") -> None:
    """Print every program by topology, followed by the memory of all its programs together."""
    rows = report.to_json()
    several = len({row["part"] for row in rows}) > 1
    together = list_together(report.together_to_json())
    for place, ones in groupby(rows, key=place_of):
        narrow = console.width < _TABLE_WIDTH
        if narrow:
            for line in _lines(place, ones, several):
                console.print(line, soft_wrap=True)
        else:
            console.print(_table(place, ones, several))
        if sentence := together.pop(place[:3], None):
            console.print(Text(f"{'  ' if narrow else ' '}{sentence}"), soft_wrap=True)
            console.print()
    console.print(Text(_NOTE, style="dim"), soft_wrap=True)


def print_suggestion(console: Console, report: "PreflightReport") -> None:
    """Print the suggested batch sizes if they differ from the checked ones."""
    if report.batch_sizes and set(report.batch_sizes) != {one.program.batch_size for one in report.verdicts}:
        sizes = ",".join(map(str, report.batch_sizes))
        others = "by these estimates, other sizes do not fit, or take as long as the next larger size"
        console.print(Text(f"Suggested: --batch-sizes {sizes} ({others})"), soft_wrap=True)


def _lines(place: Place, rows: Iterable[Row], several: bool) -> Iterator[Text]:
    yield Text(describe_place(place), style="bold")
    for row in rows:
        bucket, verdict, *numbers = cells(row)
        numbers_text = [f"{name} {value}" for name, value in zip(COLUMNS[2:], numbers, strict=True) if value]
        name = f"{row['part']} {bucket}" if several else bucket
        yield Text.assemble(f"  batch {name}: ", (verdict, _style(row)), "".join(f", {one}" for one in numbers_text))


def _table(place: Place, rows: Iterable[Row], several: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, title=describe_place(place))
    table.title_justify, table.title_style = "left", "bold"
    for name in COLUMNS:
        table.add_column(name, overflow="fold", justify="left" if name in COLUMNS[:2] else "right")
    for row in rows:
        bucket, verdict, *numbers = cells(row)
        table.add_row(f"{row['part']} {bucket}" if several else bucket, Text(verdict, _style(row)), *numbers)
    return table


def _style(row: Row) -> str:
    return "green" if row["verdict"] == _PASSED else "red"
