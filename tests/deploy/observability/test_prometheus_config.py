"""Tests for prometheus.yaml: promtool accepts it and each variant in its comments."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import base_manifests, server_container
from tests.deploy.observability.alert_case import OBSERVABILITY, RULES
from tests.deploy.observability.promtool import run_promtool
from tests.support.optional import needs

CONFIG = OBSERVABILITY / "prometheus.yaml"
TEXT = CONFIG.read_text(encoding="utf-8")


def variants() -> list[dict[str, Any]]:
    """Return the jobs in comments."""
    blocks = re.findall(r"^# - job_name.*\n(?:#   .*\n)+", TEXT, re.MULTILINE)
    return [job for block in blocks for job in yaml.safe_load(re.sub("^# ", "", block, flags=re.MULTILINE))]


def fields() -> list[dict[str, Any]]:
    """Return the fields in comments that a user adds to a job."""
    blocks = re.findall(r"^# [^\n]*dd these fields[^\n]*\n((?:#   [^\n]*\n)+)", TEXT, re.MULTILINE)
    return [yaml.safe_load(re.sub("^#   ", "", block, flags=re.MULTILINE)) for block in blocks]


@needs("promtool")
@pytest.mark.parametrize("added", fields(), ids=lambda added: next(iter(added)))
def test_promtool_accepts_the_fields(added: dict[str, Any], tmp_path: Path) -> None:
    config = yaml.safe_load(TEXT)
    config["rule_files"] = [str(path) for path in RULES]
    (job,) = config["scrape_configs"]
    for value in added.values():
        for name in ("ca_file", "credentials_file"):
            if isinstance(value, dict) and name in value:
                (tmp_path / name).write_text("x")
                value[name] = str(tmp_path / name)
    file = tmp_path / "prometheus.yaml"
    file.write_text(yaml.safe_dump({**config, "scrape_configs": [{**job, **added}]}))
    run_promtool("check", "config", "--syntax-only", file)


def test_fields_are_those_of_tls_and_of_keys() -> None:
    assert [set(added) for added in fields()] == [{"scheme", "tls_config"}, {"authorization"}]


@needs("promtool")
def test_promtool_accepts_the_configuration() -> None:
    run_promtool("check", "config", CONFIG)


@needs("promtool")
@pytest.mark.parametrize("job", variants(), ids=lambda job: next(key for key in job if key.endswith("_configs")))
def test_promtool_accepts_the_variant(job: dict[str, Any], tmp_path: Path) -> None:
    # Debian's Prometheus is built without Kubernetes, so promtool checks the rest of that job.
    known = {key: value for key, value in job.items() if key != "kubernetes_sd_configs"}
    config = yaml.safe_load(TEXT) | {"scrape_configs": [known], "rule_files": [str(path) for path in RULES]}
    file = tmp_path / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    run_promtool("check", "config", file)


def test_every_job_has_the_name_that_alerts_select() -> None:
    jobs = [*yaml.safe_load(TEXT)["scrape_configs"], *variants()]
    assert [job["job_name"] for job in jobs] == ["tpuserve"] * 3
    alerts = (OBSERVABILITY / "rules/alerts.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r'job="(\w+)"', alerts)) == {"tpuserve"}


def test_kubernetes_variant_selects_the_rest_port_of_the_base() -> None:
    (job,) = (job for job in variants() if "kubernetes_sd_configs" in job)
    kept = {rule["source_labels"][0]: rule["regex"] for rule in job["relabel_configs"] if rule.get("action") == "keep"}
    pod = base_manifests()["Deployment"]["spec"]["template"]
    assert (
        kept["__meta_kubernetes_pod_label_app_kubernetes_io_name"]
        == pod["metadata"]["labels"]["app.kubernetes.io/name"]
    )
    ports = {port["name"]: port["containerPort"] for port in server_container()["ports"]}
    assert ports[kept["__meta_kubernetes_pod_container_port_name"]] == 8501
