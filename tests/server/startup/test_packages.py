"""Tests for the packages that the status shows."""

from importlib.metadata import version

from tpuserve_server.startup.packages import installed_packages


def test_installed_packages_have_their_versions() -> None:
    found = installed_packages()
    assert found["numpy"] == version("numpy")
    assert "tpuserve-server" in found
    assert all(found.values())
