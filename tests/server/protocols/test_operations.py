"""Tests for the routes outside the protocols."""

from fastapi import FastAPI

from tpuserve_server.access.access import ANY_ROLE, CONTROL_SERVER, OPEN, READ
from tpuserve_server.protocols.operations import Operations


async def nothing() -> None:
    pass


def make() -> tuple[FastAPI, Operations]:
    app = FastAPI()
    operations = Operations(app)
    operations.add("/probe", nothing, OPEN)
    operations.add("/things/{name:path}", nothing, READ, is_page=True)
    return app, operations


def scope(path: str, method: str = "GET") -> dict[str, object]:
    return {"type": "http", "method": method, "path": path}


def test_a_route_has_the_access_that_it_was_added_with() -> None:
    _, operations = make()
    assert operations.find(scope("/probe")).access is OPEN
    thing = operations.find(scope("/things/a/b"))
    assert (thing.access, thing.method, thing.is_page) == (READ, "/things/{name:path}", True)


def test_another_http_method_needs_the_same() -> None:
    _, operations = make()
    assert operations.find(scope("/things/a", "DELETE")).access is READ


def test_an_unknown_path_needs_any_role() -> None:
    _, operations = make()
    assert operations.find(scope("/unknown")).access is ANY_ROLE


def test_a_route_that_was_added_otherwise_is_closed() -> None:
    app, operations = make()
    app.get("/forgotten")(nothing)
    assert operations.find(scope("/forgotten")).access is CONTROL_SERVER


def test_the_openapi_document_needs_a_role() -> None:
    _, operations = make()
    assert operations.find(scope("/openapi.json")).access is READ
