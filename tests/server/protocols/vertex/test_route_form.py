import pytest

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.protocols.vertex.route_form import check_route

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
