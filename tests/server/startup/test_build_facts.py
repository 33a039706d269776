"""Tests for the flags and the versions of packages that the status shows."""

import json
from importlib.metadata import version
from typing import Any

import pytest

from tpuserve_server.protocols.console.sources import ChangedFlag
from tpuserve_server.startup.build_facts import changed_flags, installed_packages
from tpuserve_server.startup.validation import read_settings


def changed(**values: Any) -> dict[str, Any]:  # noqa: ANN401 - values of flags
    found = changed_flags(read_settings(**{"model_base_path": "/m", **values}))
    json.dumps([[flag.value, flag.default] for flag in found])
    return {flag.name: flag.value for flag in found}


def test_only_changed_flags_are_listed() -> None:
    assert changed_flags(read_settings(model_base_path="/m", port=8500)) == (
        ChangedFlag("model_base_path", "/m", None),
    )


def test_values_are_json() -> None:
    assert changed(
        ssl_config_file="/etc/ssl.cfg", grpc_channel_arguments=(("grpc.a", 1),), response_cache_max_bytes=5
    ) == {
        "model_base_path": "/m",
        "ssl_config_file": "/etc/ssl.cfg",
        "grpc_channel_arguments": [["grpc.a", 1]],
        "response_cache_max_bytes": 5,
    }


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3://user:password@bucket/m", "s3://***@bucket/m"),
        ("http://user:pass/word@host:4318", "http://***@host:4318"),
        ("//user:password@host", "//***@host"),
        ("gs://bucket/m@2", "gs://bucket/m@2"),
        ("gs://bucket/m?X-Goog-Signature=abc", "gs://bucket/m?***"),
        ("gs://bucket/m", "gs://bucket/m"),
    ],
)
def test_secrets_in_uris_are_hidden(uri: str, shown: str) -> None:
    assert changed(model_base_path=uri) == {"model_base_path": shown}


def test_installed_packages_have_their_versions() -> None:
    found = installed_packages()
    assert found["numpy"] == version("numpy")
    assert "tpuserve-server" in found
    assert all(found.values())
