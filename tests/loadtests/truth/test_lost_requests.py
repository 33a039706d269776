"""Tests of the counts of requests without a response, of arrivals that were not sent, and of loads that end early."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from tests.loadtests.doubling_server import serving_http
from tests.loadtests.truth.answers import has_json_inputs, rest_metadata
from tests.loadtests.truth.cases import BROKEN, DROPPED, EARLY_ENDS, EJECTED
from tests.loadtests.truth.tester import MODEL, Case, loadtest, measure
from tests.loadtests.truth.verdicts import assert_true


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.name)
def test_broken_connections_and_missing_responses_are_failures(case: Case, tmp_path: Path) -> None:
    row = measure(case, tmp_path)
    assert row.counts["errors"].true
    assert_true([row])


@pytest.mark.parametrize("case", EJECTED, ids=lambda case: case.name)
def test_requests_after_an_ejected_connection_are_sent_and_counted_once(case: Case, tmp_path: Path) -> None:
    assert_true([measure(case, tmp_path)])


def test_dropped_arrivals_are_counted(tmp_path: Path) -> None:
    row = measure(DROPPED, tmp_path)
    assert row.counts["dropped"].true
    assert_true([row])


@pytest.mark.parametrize("case", EARLY_ENDS, ids=lambda case: case.name)
def test_a_load_that_ends_early_drops_no_arrival(case: Case, tmp_path: Path) -> None:
    row = measure(case, tmp_path)
    assert case.planned is not None
    assert row.logged < len(case.planned)
    assert_true([row])


@pytest.mark.parametrize("rows", ["1", "1:0.5,2:0.5"])
def test_responses_that_never_end_count_as_failed(rows: str) -> None:
    app = FastAPI()

    @app.get("/v1/models/{model}/metadata")
    def metadata(model: str) -> Response:
        return Response(rest_metadata(model))

    @app.post("/v1/models/{model}:predict")
    async def predict(request: Request) -> Response:
        if not has_json_inputs(await request.body(), 0):
            return Response(status_code=400)
        return StreamingResponse(_drops())

    async def _drops() -> AsyncIterator[bytes]:
        while True:  # until the client leaves
            yield b" "
            await asyncio.sleep(0.05)

    with serving_http(app) as port:
        options = ("--users", "2", "--duration", "200ms", "--warm-up", "0", "--timeout", "1s", "--rows", rows)
        margin = {"tpuserve_loadtests.traffic.engine.STOP_MARGIN_S": 0.5}
        said = loadtest("run", MODEL, "--rest", f"http://127.0.0.1:{port}", *options, constants=margin)
    assert (said.document["total"]["requests"], said.document["total"]["failures"]) == (2, 2)
    errors = [(error["message"], error["count"]) for error in said.document["errors"]]
    assert {message for message, _ in errors} == {"no response within 1 s"}
    assert sum(count for _, count in errors) == 2
    lines = said.document.get("protocols") or said.document["lines"]
    assert sum(line["failures"] for line in lines.values()) == 2
