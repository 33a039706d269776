"""Tests that docs/reference lists exactly the existing flags and metrics."""

import re
from pathlib import Path

import click

from tests.deploy.dockerfile import ROOT
from tests.docs.flag_table import flag_table, written_table
from tests.docs.metric_table import exposed_name, table_names, tables, write_tables
from tests.support.measured import ID, finish, run_batch
from tpuserve_server.observe.metrics.catalogue import CATALOGUE
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics
from tpuserve_server.observe.metrics.upstream import UPSTREAM_FAMILIES, upstream_page
from tpuserve_server.startup.command import serve
from tpuserve_server.startup.flag_command import UNNEEDED

FLAGS = (ROOT / "docs/reference/server-flags.md").read_text(encoding="utf-8")
METRICS = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")


def table_rows(page: str) -> list[list[str]]:
    """Return the cells of each table row that starts with code."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| `")
    ]


def test_every_flag_is_listed_with_its_default() -> None:
    listed = {row[0].split("`")[1]: row[1] for row in table_rows(FLAGS) if row[0].startswith("`--")}
    flags = {option.opts[0]: option for option in serve.params if isinstance(option, click.Option)}
    for elsewhere in ("--version", *(f"--{flag.name}" for flag in UNNEEDED)):
        del flags[elsewhere]
    assert listed.keys() == flags.keys()
    for name, option in flags.items():
        if isinstance(option.default, bool):
            assert listed[name] == str(option.default).lower()
        elif isinstance(option.default, int | float):
            assert listed[name] == f"{option.default:g}" or listed[name] == str(option.default)
        elif isinstance(option.default, str) and option.default:
            assert listed[name] == option.default


def test_the_table_of_flags_is_made_of_their_declarations() -> None:
    assert written_table(FLAGS) == flag_table(), "Run: python -m tests.docs.flag_table"


def test_every_metric_is_listed_with_its_type() -> None:
    listed = {
        row[0].strip("`"): row[1] for row in table_rows(METRICS) if row[0].startswith(("`tpuserve_", "`process_"))
    }
    metrics = {exposed_name(metric): metric.type for metric in PrometheusMetrics().registry.collect()}
    assert listed == metrics


def test_the_tables_of_metrics_are_made_of_their_declarations() -> None:
    assert set(table_names(METRICS)) == tables().keys()
    assert write_tables(METRICS) == METRICS, "Run: python -m tests.docs.metric_table"


def test_every_metric_of_the_catalogue_is_on_the_page() -> None:
    declared = {family.name: (family.kind, family.text) for families in CATALOGUE.values() for family in families}
    collected = PrometheusMetrics().registry.collect()
    own = {
        exposed_name(each): (each.type, each.documentation) for each in collected if each.name.startswith("tpuserve_")
    }
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
    assert set(named) <= {exposed_name(metric) for metric in PrometheusMetrics().registry.collect()}
