"""`python -m tests.docs.metric_table`: rewrite the tables of docs/reference/metrics.md from their declarations."""

import re
from collections.abc import Iterable, Sequence

from tests.deploy.dockerfile import ROOT
from tpuserve_server.observe.metrics.catalogue import CATALOGUE, LABELS
from tpuserve_server.observe.metrics.families import Family
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics
from tpuserve_server.observe.metrics.triton import TRITON_FAMILIES, TRITON_LABELS
from tpuserve_server.observe.metrics.upstream import UPSTREAM_FAMILIES, UPSTREAM_LABELS, UpstreamFamily

PAGE = ROOT / "docs/reference/metrics.md"
_TABLE = re.compile(r"<!-- table: (.*?) -->\n.*?<!-- end of table -->\n", re.DOTALL)
_HEAD = ("Name", "Type", "Labels", "Meaning")


def table_names(page: str) -> list[str]:
    """Return the names of the page's tables."""
    return _TABLE.findall(page)


def tables() -> dict[str, str]:
    """Return every table by name: sections of the catalogue, labels, the process and other servers."""
    sections = {section: _metrics(families) for section, families in CATALOGUE.items()}
    meanings = {**TRITON_LABELS, **LABELS, **UPSTREAM_LABELS}
    labels = _table(("Label", "Values"), [(f"`{label}`", values) for label, values in meanings.items()])
    others = {"upstream": _metrics(UPSTREAM_FAMILIES), "triton": _metrics(TRITON_FAMILIES)}
    return {**sections, "labels": labels, "process": _process(), **others}


def write_tables(page: str) -> str:
    """Return the page with each table rewritten. Raises KeyError for an unknown table."""
    written = tables()
    return _TABLE.sub(lambda found: f"<!-- table: {found[1]} -->\n{written[found[1]]}<!-- end of table -->\n", page)


def _process() -> str:
    families = [collected.family for collected in PrometheusMetrics().collect()]
    return _metrics(family for family in families if family.name.startswith("process_"))


def _metrics(families: Iterable[Family | UpstreamFamily]) -> str:
    return _table(_HEAD, [(f"`{each.name}`", each.kind, ", ".join(each.labels), each.text) for each in families])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, *rows]
    text = ["".join(f"| {cell} " if cell else "| " for cell in cells) + "|\n" for cells in lines]
    return "".join((text[0], "|---" * len(head) + "|\n", *text[1:]))


if __name__ == "__main__":
    PAGE.write_text(write_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
