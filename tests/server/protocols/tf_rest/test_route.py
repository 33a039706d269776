"""Tests for paths under /v1/: upstream's cases (http_rest_api_handler_test.cc) and unusual names."""

import pytest

from tpuserve_server.core.terms.errors import InvalidArgument, shown
from tpuserve_server.core.terms.types import ModelSpec
from tpuserve_server.protocols.tf_rest.route import Action, Route, parse_route


@pytest.mark.parametrize(
    ("method", "path", "action", "spec"),
    [
        ("POST", "/v1/models/m:predict", Action.PREDICT, ModelSpec("m")),
        ("POST", "/V1/Models/M:PREDICT", Action.PREDICT, ModelSpec("M")),
        ("POST", "/v1/models/m:classify", Action.CLASSIFY, ModelSpec("m")),
        ("POST", "/v1/models/m:regress", Action.REGRESS, ModelSpec("m")),
        ("POST", "/v1/models/m/versions/0012:predict", Action.PREDICT, ModelSpec("m", version=12)),
        ("POST", f"/v1/models/m/versions/{2**63 - 1}:predict", Action.PREDICT, ModelSpec("m", version=2**63 - 1)),
        ("POST", f"/v1/models/m/versions/{'0' * 9000}1:predict", Action.PREDICT, ModelSpec("m", version=1)),
        ("POST", "/v1/models/m/versions/0:predict", Action.PREDICT, ModelSpec("m", version=0)),
        ("POST", "/v1/models/m/Labels/Stable:predict", Action.PREDICT, ModelSpec("m", version_label="Stable")),
        ("POST", "/v1/models/a%2Fb%3Ac%20:predict", Action.PREDICT, ModelSpec("a/b:c ")),
        ("POST", "/v1/models/%2e%2e%2f%00:predict", Action.PREDICT, ModelSpec("../\0")),
        ("POST", "/v1/models/m/labels/%C3%A9:predict", Action.PREDICT, ModelSpec("m", version_label="é")),
        ("GET", "/v1/models", Action.LIST, ModelSpec("")),
        ("GET", "/v1/models/m", Action.STATUS, ModelSpec("m")),
        ("GET", "/v1/models/m/versions/3", Action.STATUS, ModelSpec("m", version=3)),
        ("GET", "/v1/models/m/labels/l", Action.STATUS, ModelSpec("m", version_label="l")),
        ("GET", "/v1/models/m/metadata", Action.METADATA, ModelSpec("m")),
        ("GET", "/v1/models/m/versions/3/metadata", Action.METADATA, ModelSpec("m", version=3)),
        ("OPTIONS", "/v1/models/m:predict", Action.PREFLIGHT, ModelSpec("")),
        ("OPTIONS", "/v1/anything", Action.PREFLIGHT, ModelSpec("")),
        ("GET", "/v1/models/metadata", Action.STATUS, ModelSpec("metadata")),
    ],
)
def test_paths_that_ask_for_something(method: str, path: str, action: Action, spec: ModelSpec) -> None:
    assert parse_route(method, path.encode()) == Route(action, spec)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/foo"),
        ("POST", "/v1/foo"),
        ("GET", "/v1/models/debug/model_name"),
        ("POST", "/v1/models"),
        ("GET", "/v1/models/"),
        ("GET", "/v1/models/foo:predict"),
        ("GET", "/v1/models/foo/version/50:predict"),
        ("POST", "/v1/models/foo/version/50:regress"),
        ("POST", "/v1/models/foo/versions/HELLO:regress"),
        ("POST", "/v1/models/foo/versions/-1:regress"),
        ("POST", "/v1/models/foo/metadata"),
        ("POST", "/v1/models/foo/label/some_label:regress"),
        ("POST", "/v1/models/foo/versions/50/labels/some_label:regress"),
        ("POST", "/v1/models/:predict"),
        ("POST", "/v1/models/m:predict\n"),
        ("POST", "/v1/models/m:unknown"),
        ("PUT", "/v1/models/m:predict"),
        ("HEAD", "/v1/models/m"),
        ("PATCH", "/v1/models/m"),
        ("GET", "/v1/" + "x" * 10_000),
    ],
)
def test_anything_else_is_malformed(method: str, path: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_route(method, path.encode())
    assert caught.value.message == f"Malformed request: {method} {shown(path)}"


@pytest.mark.parametrize("digits", [str(2**63), str(2**64 - 1), "9" * 9000])
def test_version_beyond_int64_is_told(digits: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_route("POST", f"/v1/models/foo/versions/{digits}:regress".encode())
    assert caught.value.message == f"Failed to convert version: {shown(digits)} to numeric."


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (b"/v1/models/%ff:predict", "Failed to decode model name:%ff"),
        (b"/v1/models/m/labels/%ff:predict", "Failed to decode model version label:%ff"),
    ],
)
def test_names_that_are_no_text_are_refused(path: bytes, text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_route("POST", path)
    assert caught.value.message == text
