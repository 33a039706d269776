"""Tests for the paths under /v2."""

import pytest

from tpuserve_server.access.access import DESCRIBE, OPEN, PREDICT, READ
from tpuserve_server.core.terms.errors import InvalidArgument, ServingError
from tpuserve_server.core.terms.types import ModelSpec
from tpuserve_server.protocols.oip_rest.route import Action, Route, parse_route
from tpuserve_server.protocols.status import MethodNotAllowed, PathNotFound


@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("GET", b"/v2", Route(Action.SERVER_METADATA, ModelSpec(""), READ)),
        ("GET", b"/v2/", Route(Action.SERVER_METADATA, ModelSpec(""), READ)),
        ("GET", b"/v2/health/live", Route(Action.SERVER_LIVE, ModelSpec(""), OPEN)),
        ("GET", b"/v2/health/ready", Route(Action.SERVER_READY, ModelSpec(""), OPEN)),
        ("GET", b"/v2/models/a%2Fb", Route(Action.MODEL_METADATA, ModelSpec("a/b"), DESCRIBE)),
        ("GET", b"/v2/models/M/versions/07", Route(Action.MODEL_METADATA, ModelSpec("M", 7), DESCRIBE)),
        ("GET", b"/v2/models/m/ready", Route(Action.MODEL_READY, ModelSpec("m"), DESCRIBE)),
        ("POST", b"/v2/models/m/infer", Route(Action.INFER, ModelSpec("m"), PREDICT)),
        ("POST", b"/v2/models/m:1/versions/7/infer", Route(Action.INFER, ModelSpec("m:1", 7), PREDICT)),
        ("POST", b"/v2/models/%s/infer" % (b"m" * 600), Route(Action.INFER, ModelSpec("m" * 600), PREDICT)),
    ],
)
def test_a_path_is_an_action_on_a_model(method: str, path: bytes, route: Route) -> None:
    assert parse_route(method, path) == route


@pytest.mark.parametrize(
    "path",
    [
        b"/V2",
        b"/v2/Models/m",
        b"/v2/health",
        b"/v2/health/ready/",
        b"/v2/models",
        b"/v2/models/",
        b"/v2/models/m/",
        b"/v2/models/m/versions/x/infer",
        b"/v2/models/m/versions/-1",
        b"/v2/models/m/labels/l/infer",
        b"/v2/models/m/predict",
        b"/v2x",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_case_and_slashes_count(method: str, path: bytes) -> None:
    with pytest.raises(PathNotFound, match="Not Found"):
        parse_route(method, path)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", b"/v2/models/m/infer"), ("POST", b"/v2/models/m"), ("HEAD", b"/v2"), ("OPTIONS", b"/v2/health/live")],
)
def test_a_known_path_with_another_method_is_refused(method: str, path: bytes) -> None:
    with pytest.raises(MethodNotAllowed, match="Method Not Allowed"):
        parse_route(method, path)


@pytest.mark.parametrize("path", [b"/v2/models/%ff", b"/v2/models/m/versions/9223372036854775808"])
def test_impossible_names_and_versions_are_refused(path: bytes) -> None:
    with pytest.raises(InvalidArgument):
        parse_route("GET", path)
    with pytest.raises(ServingError):
        parse_route("POST", path + b"/infer")
