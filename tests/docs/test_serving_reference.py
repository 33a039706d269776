"""Tests that docs/reference lists exactly the existing flags and metrics."""

import re
from pathlib import Path

from tests.deploy.dockerfile import ROOT
from tests.docs.metric_table import table_names, tables, write_tables
from tests.support.measured import ID, finish, run_batch, upstream_page
from tests.support.upstream_flags import UPSTREAM_FLAGS
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.observe.metrics.catalogue import CATALOGUE
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics
from tpuserve_server.observe.metrics.upstream import UPSTREAM_FAMILIES
from tpuserve_server.startup.flag_help import HELP, SHOWN_DEFAULTS
from tpuserve_server.startup.settings import flags

FLAGS = (ROOT / "docs/reference/server-flags.md").read_text(encoding="utf-8")
METRICS = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")


def table_rows(page: str) -> list[list[str]]:
    """Return the cells of each table row that starts with code."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| `")
    ]


def test_every_flag_is_listed_in_its_section_with_its_default() -> None:
    listed: list[tuple[str, str, str]] = []
    section = ""
    for line in FLAGS.splitlines():
        if heading := re.match(r"\| \*\*(\w+)\*\*", line):
            section = heading[1]
        elif line.startswith("| `--"):
            name, default, _ = (cell.strip() for cell in re.sub(r"\|\s+\|", "| - |", line).strip("|").split("|"))
            listed.append((section, name, "" if default == "-" else default))
    assert [(section, name.split("`")[1]) for section, name, _ in listed] == [
        *((flag.setting.section, f"--{flag.name}") for flag in flags()),
        ("Access", "--check_config"),
    ]
    for flag, (_, name, default) in zip(flags(), listed, strict=False):
        assert name.endswith("★") == (flag.name in UPSTREAM_FLAGS), name
        # The page writes code and links into the words.
        assert _plain(flag.shown_default or _default(flag.default)) in _plain(default), name


def test_every_further_variable_of_a_flag_is_in_its_row() -> None:
    rows = {line.split("`")[1]: line for line in FLAGS.splitlines() if line.startswith("| `--")}
    missing = [
        variable
        for flag in flags()
        for variable in flag.setting.variables
        if f"also `{variable}`" not in rows[f"--{flag.name}"]
    ]
    assert not missing


def test_every_flag_of_the_core_has_a_line_of_help_and_no_other() -> None:
    assert {flag.name for flag in flags() if not flag.setting.help} == set(HELP)
    assert set(HELP) >= set(SHOWN_DEFAULTS)


def _default(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value if value is not None else "")


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", text.lower())


def test_every_metric_is_listed_with_its_type() -> None:
    listed = {
        row[0].strip("`"): row[1] for row in table_rows(METRICS) if row[0].startswith(("`tpuserve_", "`process_"))
    }
    metrics = {each.family.name: each.family.kind for each in PrometheusMetrics().collect()}
    assert listed == metrics


def test_the_tables_of_metrics_are_made_of_their_declarations() -> None:
    assert set(table_names(METRICS)) == tables().keys()
    assert write_tables(METRICS) == METRICS, "Run: python -m tests.docs.metric_table"


def test_every_metric_of_the_catalogue_is_on_the_page() -> None:
    declared = {family.name: (family.kind, family.text) for families in CATALOGUE.values() for family in families}
    families = [each.family for each in PrometheusMetrics().collect()]
    own = {family.name: (family.kind, family.text) for family in families if family.name.startswith("tpuserve_")}
    assert declared == own


def test_every_label_has_a_meaning() -> None:
    own = [family.labels for section in CATALOGUE.values() for family in section]
    labels = {label for names in (*own, *(family.labels for family in UPSTREAM_FAMILIES)) for label in names}
    assert labels == {row[0].strip("`") for row in table_rows(tables()["labels"])}


def test_every_upstream_metric_is_listed_with_its_type_and_labels() -> None:
    metrics = PrometheusMetrics()
    finish(metrics)
    run_batch(metrics)
    metrics.examples_received(model="m", count=1)
    metrics.version_warmed(servable=ID, path=Path("/models/m/3"), records=1, duration_s=0.1)
    metrics.request_logged(model="m", outcome="written")
    metrics.version_loaded(servable=ID, path="/models/m/3", costs=CostModel(), load_s=1.0, restore_s=0.5)
    listed = {row[0].strip("`"): (row[1], row[2]) for row in table_rows(METRICS) if row[0].startswith("`:tensorflow:")}
    shown = {}
    for name, kind, labels in re.findall(r"^# TYPE (\S+) (\S+)\n[^{]+\{(.*)\}", upstream_page(metrics), re.MULTILINE):
        names = [label for label in re.findall(r'(\w+)="', labels) if label != "le"]
        shown[name] = (kind, ", ".join(names))
    assert listed == shown


def test_operations_names_only_metrics_that_exist() -> None:
    pages = (ROOT / "docs/how-to/operate").glob("*.md")
    named = re.findall(r"`(tpuserve_\w+)", "".join(page.read_text(encoding="utf-8") for page in pages))
    assert named
    assert set(named) <= {each.family.name for each in PrometheusMetrics().collect()}
