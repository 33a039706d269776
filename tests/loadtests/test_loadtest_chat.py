"""Tests for loads of streamed chat completions against a scripted server, which records when it sent each token."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from tests.loadtests.doubling_server import serving_http
from tests.support import forked_command

FIRST_S, BETWEEN_S = 0.08, 0.02
PAGE = "<!doctype html>"


@dataclass
class ChatServer:
    """The server's requests, and for each the times of its arrival and of its tokens. `fault` spoils every answer."""

    url: str = ""
    fault: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    times_s: list[list[float]] = field(default_factory=list)

    async def tokens(self, count: int, times_s: list[float], *, is_chat: bool) -> AsyncIterator[str]:
        for number in range(count):
            await asyncio.sleep(BETWEEN_S if number else FIRST_S)
            times_s.append(time.monotonic())
            yield _event({"choices": [_choice(f" t{number}", is_chat=is_chat)]})
            if self.fault == "cut":
                return
            if self.fault == "error":
                yield _event({"error": {"message": "out of memory"}})
                return
        yield _event({"choices": [{**_choice("", is_chat=is_chat), "finish_reason": "stop"}]})
        yield ": comment\n\ndata: [DONE]\n\n"


def _choice(text: str, *, is_chat: bool) -> dict[str, Any]:
    part: dict[str, Any] = {"delta": {"content": text} if text else {}} if is_chat else {"text": text}
    return {"index": 0, **part}


def _event(document: dict[str, Any]) -> str:
    return f"data: {json.dumps(document)}\n\n"


@contextmanager
def chatting(fault: str = "") -> Iterator[ChatServer]:
    server, app = ChatServer(fault=fault), FastAPI()

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": "tiny"}]}

    @app.post("/v1/chat/completions")
    @app.post("/v1/completions")
    async def complete(request: Request) -> Response:
        document = await request.json()
        times_s = [time.monotonic()]
        server.requests.append(document)
        server.times_s.append(times_s)
        if fault == "status":
            return JSONResponse({"error": "overloaded"}, 503)
        if fault == "no reason":
            return Response(status_code=503)
        if fault == "page":
            return Response(PAGE)
        server.paths.append(request.url.path)
        return StreamingResponse(
            server.tokens(document["max_tokens"], times_s, is_chat="messages" in document),
            media_type="text/event-stream",
        )

    with serving_http(app) as port:
        server.url = f"openai+http://127.0.0.1:{port}"
        yield server


def run(server: ChatServer, *options: str, model: str = "tiny") -> tuple[int, dict[str, Any]]:
    load = ("--users", "2", "--requests", "8", "--duration", "30s", "--warm-up", "0", "--generator-limit", "note")
    ended = forked_command.run(
        "tpuserve-loadtest", "run", model, "--rest", server.url, *load, *options, "--server-metrics", "off", "--json"
    )
    return ended.returncode, json.loads(ended.stdout) if ended.stdout else {"stderr": ended.stderr}


def test_tokens_are_counted_and_timed_as_the_server_sent_them() -> None:
    with chatting() as server:
        code, document = run(server, "--length", "prompt=5", "--length", "max_tokens=4")
    assert code == 0
    sent = [len(times_s) - 1 for times_s in server.times_s]
    tokens = document["tokens"]["openai"]
    assert (document["total"]["failures"], sent, tokens["tokens"]) == (0, [4] * 8, 32)
    first_ms = median(1000 * (times_s[1] - times_s[0]) for times_s in server.times_s)
    between_ms = median(1000 * (b - a) for times_s in server.times_s for a, b in pairwise(times_s[1:]))
    assert first_ms * 0.99 <= tokens["ttft_p50_ms"] <= document["total"]["p50_ms"]
    # The client may read two tokens together that the server sent apart.
    assert between_ms / 2 < tokens["itl_p50_ms"] < between_ms * 2
    for request in server.requests:
        assert request["stream"] is True
        assert (request["model"], request["max_tokens"]) == ("tiny", 4)
        assert len(request["messages"][0]["content"].split()) == 5


def test_gates_read_the_first_token_and_the_time_between_tokens() -> None:
    gates = ("--fail-if", "ttft_p50>10s", "--fail-if", "ttft_p50>5ms", "--fail-if", "itl_p90<1us")
    with chatting() as server:
        code, document = run(server, "--length", "max_tokens=3", *gates)
    assert code == 99
    assert [(gate["gate"], gate["failed"]) for gate in document["gates"]] == [
        ("ttft_p50>10s", False),
        ("ttft_p50>5ms", True),
        ("itl_p90<1us", False),
    ]
    assert document["gates"][0]["figure"] == document["tokens"]["openai"]["ttft_p50_ms"]


def test_prompts_of_a_file_are_sent_in_turn(tmp_path: Path) -> None:
    file = tmp_path / "prompts.json"
    file.write_text(json.dumps({"prompt": ["Why?", "How è?"], "max_tokens": [1, 2]}))
    with chatting() as server:
        code, document = run(server, "--input", str(file), "--users", "1")
    assert code == 0
    found = [(request["messages"][0]["content"], request["max_tokens"]) for request in server.requests]
    assert found == [("Why?", 1), ("How è?", 2)] * 4
    assert document["tokens"]["openai"]["tokens"] == 12


def test_completions_of_prompts_are_streamed_from_a_file_of_lines_and_of_json_lines(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text('Why?\n\n{"prompt": "How\\nè?", "max_tokens": 2}\n')
    with chatting() as server:
        options = ("--prompts", str(file), "--length", "max_tokens=3", "--users", "1")
        code, document = run(server, "--signature", "completions", *options)
        unknown, complaint = run(server, "--signature", "embeddings")
    assert code == 0
    assert set(server.paths) == {"/v1/completions"}
    found = [(request["prompt"], request["max_tokens"]) for request in server.requests]
    assert found == [("Why?", 3), ("How\nè?", 2)] * 4
    assert document["tokens"]["openai"]["tokens"] == 20
    assert unknown == 2
    assert "the signatures of OpenAI's API are serving_default, completions, not embeddings" in complaint["stderr"]


def test_a_line_that_is_no_prompt_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "Why?"}\n{"question": "Why?"}\n')
    with chatting() as server:
        code, document = run(server, "--prompts", str(file))
    assert code == 2
    assert "prompts.jsonl, line 2: not a JSON object such as" in " ".join(document["stderr"].split())


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("cut", "wrong response: the stream ended before [DONE]"),
        ("error", "wrong response: the stream has an error: {'message': 'out of memory'}"),
        ("page", "wrong response: the stream ended before [DONE]"),
        ("status", "HTTP 503: overloaded"),
        ("no reason", "HTTP 503"),
    ],
)
def test_a_stream_that_is_no_completion_is_a_failure(fault: str, message: str) -> None:
    with chatting(fault) as server:
        code, document = run(server, "--length", "max_tokens=3")
    assert code == 1
    assert (document["total"]["requests"], document["total"]["failures"], document["tokens"]) == (8, 8, {})
    assert document["errors"] == [{"protocol": "openai", "message": message, "count": 8}]


def test_a_model_that_the_server_does_not_list_is_refused() -> None:
    with chatting() as server:
        code, document = run(server, model="other")
    assert code == 2
    assert "does not serve other: it serves tiny" in document["stderr"]
    assert server.requests == []
