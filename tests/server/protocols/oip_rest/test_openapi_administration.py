"""Tests for the OpenAPI document of a server with administration."""

from pathlib import Path

from openapi_spec_validator import validate

from tests.support.administered_server import AdministeredServer

PATHS = {
    "/v2/repository/index",
    "/v2/repository/models/{model}/load",
    "/v2/models/stats",
    "/v2/models/{model}/versions/{version}/config",
    "/v2/models/{model}/trace/setting",
    "/v2/logging",
    "/v2/systemsharedmemory/region/{region}/register",
    "/v2/cudasharedmemory/status",
}


async def test_the_document_is_valid_and_every_path_is_served(tmp_path: Path) -> None:
    with AdministeredServer(tmp_path) as server:
        document = (await server.get("/openapi.json")).json()
        validate(document)
        assert document["paths"].keys() >= PATHS
        for path, operations in document["paths"].items():
            if path.startswith("/v2"):
                concrete = path.format(model="b", version="2", region="r")
                for method in operations:
                    answer = await server.send(method.upper(), concrete)
                    assert answer.json() != {"error": "Not Found"} if answer.content else answer.status_code == 200
                    assert answer.status_code != 405
                    if answer.status_code == 200:
                        has_body = "content" in operations[method]["responses"]["200"]
                        assert has_body == bool(answer.content), path
