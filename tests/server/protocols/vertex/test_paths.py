import pytest

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.protocols.options import check_route
from tpuserve_server.protocols.vertex.paths import VertexPaths


def paths(health: str | None = None, predict: str | None = None, model: str = "m") -> VertexPaths:
    return VertexPaths.of(model, ("H", health), ("P", predict), ["/alias/metrics"])


@pytest.mark.parametrize("route", ["/predict", "/v1/endpoints/1/deployedModels/2:predict", "/v1/predict"])
def test_a_route_without_a_meaning_is_an_alias(route: str) -> None:
    assert paths("/health", route) == VertexPaths("/health", route, "/v1/models/m:predict")


def test_names_of_models_are_quoted() -> None:
    assert paths(predict="/p", model="a/b c").predict_path == "/v1/models/a%2Fb%20c:predict"


@pytest.mark.parametrize(
    "route",
    [
        "/v1/models/m:predict",
        "/V1/models/m:PREDICT",
        "/v1/models/m/versions/2:predict",
        "/v1/models/m/labels/l:predict",
    ],
)
def test_the_models_own_route_stays_what_it_is(route: str) -> None:
    assert paths(predict=route).predict_path == route


def test_the_health_route_may_be_the_readiness_or_the_models_status() -> None:
    assert paths("/readyz").has_status is False
    assert paths("/v1/models/m").has_status is True
    assert paths("/v1/models/m/versions/2").has_status is True


@pytest.mark.parametrize(
    "route",
    [
        "/v1/models", "/v1/models/n:predict", "/v1/models/m:classify", "/v1/models/m", "/v1/models/x/y", "/v2",
        "/v2/models/m/infer", "/V2/x", "/metrics", "/alias/metrics", "/healthz", "/readyz", "/openapi.json",
    ],
)  # fmt: skip
def test_a_predict_route_with_another_meaning_is_refused(route: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^P: {route} has another meaning in this server"):
        paths(predict=route)


@pytest.mark.parametrize(
    "route",
    [
        "/v1/models",
        "/v1/models/n",
        "/v1/models/m/metadata",
        "/v1/models/m:predict",
        "/v2/health/ready",
        "/metrics",
        "/healthz",
    ],
)
def test_a_health_route_with_another_meaning_is_refused(route: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^H: {route} has another meaning in this server; .*/readyz"):
        paths(route)


def test_both_routes_must_differ() -> None:
    with pytest.raises(InvalidArgument, match=r"^H and P are both /a; they must differ"):
        paths("/a", "/a")


# The platform's default.
DEFAULT = "/v1/endpoints/123/deployedModels/456:predict"


@pytest.mark.parametrize("route", ["/predict", "/a/b.c-d_~e", DEFAULT, "/v1/models/m:predict"])
def test_absolute_paths_are_routes(route: str) -> None:
    check_route("the route", route)


@pytest.mark.parametrize(
    "route",
    [
        "",
        "predict",
        "/",
        "//",
        "/a//b",
        "/a/",
        "/a/../b",
        "/./a",
        "/a?b",
        "/a#b",
        "/a b",
        "/a%20b",
        "/ä",
        "/a\n",
        "http://h/a",
    ],
)
def test_other_texts_are_refused_with_the_name_of_the_setting(route: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_route("AIP_PREDICT_ROUTE", route)
    assert caught.value.message == (
        f"AIP_PREDICT_ROUTE must be an absolute path without query and escapes, such as /predict; was {route!r}"
    )
