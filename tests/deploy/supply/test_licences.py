"""Tests of the licences of all packages in the locks: each is known and allowed, and a new one is not by default."""

from email.message import Message
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from deploy.supply.licence_rules import DEVELOPMENT, DISTRIBUTED, PROPRIETARY, REVIEWED
from deploy.supply.licences import ROOT, find_licence, judge, locked, main, read_licences


class Package(Distribution):
    """A package with the given fields of metadata."""

    def __init__(self, **fields: str | tuple[str, ...]) -> None:
        message = Message()
        for name, value in {"Metadata-Version": "2.4", "Name": "new", "Version": "1", **fields}.items():
            for each in (value,) if isinstance(value, str) else value:
                message[name.replace("_", "-")] = each
        self._text = message.as_string()

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: object) -> Path:
        raise AssertionError


def test_licence_of_every_package_is_known_and_allowed() -> None:
    found = list(read_licences())
    assert [f"{licence.package}: {licence.complaint}" for licence in found if licence.complaint] == []
    assert {"tensorflow", "grpcio", "libtpu", "nvidia-cublas", "uv", "yamllint"} <= {each.package for each in found}


def test_packages_of_a_separate_environment_count_once_it_is_installed() -> None:
    checked = {each.package for each in read_licences()}
    for environment, package in (("torch", "torch"), ("oip-clients", "tritonclient"), ("ray", "ray")):
        assert (package in checked) == (ROOT / f".{environment}/.installed").exists()


def test_command_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    assert capsys.readouterr().out.endswith(" packages, 0 to review\n")


def test_reviews_are_of_packages_that_are_used() -> None:
    used = {package for lock in (ROOT / "requirements").glob("*.lock") for package in locked(lock.stem)}
    assert (REVIEWED.keys() | PROPRIETARY.keys()) - used == set()
    assert set(locked("bootstrap")) <= used


@pytest.mark.parametrize(
    ("package", "licence"),
    [
        (Package(License_Expression="MIT OR GPL-3.0-only"), "MIT OR GPL-3.0-only"),
        (Package(License="Apache 2.0"), "Apache-2.0"),
        (Package(License="BSD-3-Clause"), "BSD-3-Clause"),
        (Package(Classifier=("License :: OSI Approved :: MIT License", "Topic :: Utilities")), "MIT"),
        (
            Package(
                Classifier=(
                    "License :: OSI Approved :: MIT License",
                    "License :: OSI Approved :: Apache Software License",
                )
            ),
            "MIT AND Apache-2.0",
        ),
        (Package(License="All rights reserved. You may not copy this."), None),
        (Package(Classifier=("License :: OSI Approved :: GNU General Public License (GPL)",)), None),
        (Package(), None),
        (None, None),
    ],
)
def test_licence_comes_from_the_metadata(package: Package | None, licence: str | None) -> None:
    assert find_licence("new", package) == licence


@pytest.mark.parametrize(
    "licence", [None, "GPL-3.0-only", "MIT AND AGPL-3.0-only", "SSPL-1.0", "Proprietary", "MIT OR"]
)
def test_new_package_needs_a_review_unless_its_licence_is_allowed(licence: str | None) -> None:
    assert judge("new", licence, DISTRIBUTED)
    assert not judge("new", "MIT OR GPL-3.0-only", DISTRIBUTED)


def test_licences_of_tools_are_not_allowed_in_images() -> None:
    assert not judge("yamllint", "GPL-3.0-or-later", DEVELOPMENT)
    assert judge("yamllint", "GPL-3.0-or-later", DISTRIBUTED)


def test_proprietary_licences_are_allowed_by_package() -> None:
    assert not judge("libtpu", "LicenseRef-Google-Cloud-Terms", DISTRIBUTED)
    assert judge("other", "LicenseRef-Google-Cloud-Terms", DISTRIBUTED)
