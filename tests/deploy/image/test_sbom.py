"""Tests of the software bills of materials, which uv makes from the locks."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from deploy.image.sbom import bill_of_materials, main
from deploy.image.targets import TARGETS
from tests.support.optional import cannot_run


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    try:
        return bill_of_materials(TARGETS["pjrt"])
    except subprocess.CalledProcessError:
        cannot_run("needs the package index")


def test_packages_are_those_of_the_image(document: dict[str, Any]) -> None:
    names = [component["name"] for component in document["components"]]
    assert len(names) == len(set(names))
    assert {"jax", "jaxlib", "httpx", "tpuserve-server", "tpuserve-formats", "tpuserve-client"} <= set(names)
    assert not {"tensorflow", "scipy", "colorama"} & set(names)


def test_package_of_the_index_has_hashes_and_a_url_of_its_kind(document: dict[str, Any]) -> None:
    for component in document["components"]:
        assert component["purl"] == f"pkg:pypi/{component['name']}@{component['version']}"
        if not component["name"].startswith("tpuserve-"):
            assert all(reference["hashes"] for reference in component["externalReferences"])


def test_every_package_has_its_licence(document: dict[str, Any]) -> None:
    licences = {component["name"]: component.get("licenses") for component in document["components"]}
    assert None not in licences.values()
    assert licences["jax"] == licences["tpuserve-server"] == [{"expression": "Apache-2.0"}]


def test_dependencies_name_packages_of_the_document(document: dict[str, Any]) -> None:
    known = {component["bom-ref"] for component in document["components"]}
    known.add(document["metadata"]["component"]["bom-ref"])
    used = {name for entry in document["dependencies"] for name in (entry["ref"], *entry.get("dependsOn", ()))}
    assert used <= known


def test_document_describes_the_image(document: dict[str, Any]) -> None:
    described = document["metadata"]["component"]
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    assert (described["type"], described["name"]) == ("container", "tpuserve-server-pjrt")


@pytest.mark.usefixtures("document")
def test_command_writes_a_file_for_each_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(tmp_path / "sbom", ["pjrt", "loadtests"])
    assert (tmp_path / "sbom/tpuserve-loadtests.cdx.json").exists()
    written = json.loads((tmp_path / "sbom/tpuserve-server-pjrt.cdx.json").read_text())
    assert f"tpuserve-server-pjrt.cdx.json: {len(written['components'])} packages" in capsys.readouterr().out
