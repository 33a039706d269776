"""The files and functions of the server that a request passes in its steady state, on a real model."""

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.support.lane_messages import PREDICT
from tests.support.saved_models import save_mlp
from tpuserve_formats.messages.official import PredictRequest
from tpuserve_formats.tensor_proto import encode_tensor

if TYPE_CHECKING:
    from starlette.types import Message, Scope

# Requests before those that count: layouts, templates and costs are then known.
_BEFORE = 200
# Requests that count. Their median is neither one of the slowest of its minute nor a sample, which pass more functions.
_COUNTED = 101
# Numbers in a row of the model.
_WIDTH = 64
_SERVER = "/tpuserve_server/"
_GRPC_HEADERS = [(b"content-type", b"application/grpc"), (b"te", b"trailers")]


@dataclass
class Watch:
    """Collects the code that runs between `begin` and `end`, in all threads that start after `install`."""

    seen: set[CodeType] = field(default_factory=set)
    is_on: bool = False

    def install(self) -> None:
        """Watch this thread, and those that start later."""
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    @contextmanager
    def on(self) -> Iterator[set[CodeType]]:
        """Yield the code that runs meanwhile."""
        self.seen, self.is_on = set(), True
        try:
            yield self.seen
        finally:
            self.is_on = False

    def _called(self, frame: FrameType, event: str, _argument: Any) -> None:  # noqa: ANN401 - of the interpreter
        if self.is_on and event == "call" and _SERVER in frame.f_code.co_filename:
            self.seen.add(frame.f_code)


def measure(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the files and the functions of a request by its protocol. Blocks for some seconds."""
    watch = Watch()
    watch.install()
    try:
        return asyncio.run(_measure(folder, watch))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def _measure(folder: Path, watch: Watch) -> dict[str, tuple[int, int]]:
    from tpuserve_server.hosts.endpoint import Endpoint
    from tpuserve_server.hosts.in_flight import InFlight
    from tpuserve_server.hosts.quick_calls import allow_quick_calls
    from tpuserve_server.startup.app import build
    from tpuserve_server.startup.listening import host_options
    from tpuserve_server.startup.validation import read_settings

    save_mlp(folder / "mlp" / "1")
    settings = read_settings(model_name="mlp", model_base_path=str(folder / "mlp"))
    server = build(settings)
    loop = asyncio.get_running_loop()
    allow_quick_calls(loop)
    endpoint = Endpoint(server, host_options(settings.listening, settings.host), InFlight(), None, loop)
    try:
        await server.start()
        await server.ready()
        return {name: await _count(endpoint, watch, *request) for name, request in _requests().items()}
    finally:
        server.drain()
        await server.stop()


async def _count(endpoint: Any, watch: Watch, scope: "Scope", body: bytes) -> tuple[int, int]:  # noqa: ANN401
    for _ in range(_BEFORE):
        await _send(endpoint, scope, body)
    passages = []
    for _ in range(_COUNTED):
        with watch.on() as seen:
            await _send(endpoint, scope, body)
        passages.append(seen)
    seen = sorted(passages, key=len)[_COUNTED // 2]
    return len({code.co_filename for code in seen}), len(seen)


def _requests() -> dict[str, "tuple[Scope, bytes]"]:
    message = PredictRequest(model_spec={"name": "mlp"})
    message.inputs["x"].MergeFromString(encode_tensor(np.ones((1, _WIDTH), np.float32), as_content=True))
    grpc = message.SerializeToString()
    ones = [1] * _WIDTH
    rows = json.dumps({"instances": [ones]}).encode()
    tensor = {"name": "x", "shape": [1, _WIDTH], "datatype": "FP32", "data": ones}
    tensors = json.dumps({"inputs": [tensor]}).encode()
    return {
        "gRPC Predict": (_scope(PREDICT, "2", _GRPC_HEADERS), b"\0" + len(grpc).to_bytes(4, "big") + grpc),
        "REST predict": (_scope("/v1/models/mlp:predict", "1.1"), rows),
        "OIP infer over REST": (_scope("/v2/models/mlp/infer", "1.1"), tensors),
    }


def _scope(path: str, version: str, headers: list[tuple[bytes, bytes]] | None = None) -> "Scope":
    return {
        "type": "http",
        "http_version": version,
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers or [(b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "extensions": {"http.response.trailers": {}},
    }


async def _send(endpoint: Any, scope: "Scope", body: bytes) -> None:  # noqa: ANN401 - imported late
    sent: list[Message] = []

    async def receive() -> "Message":
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: "Message") -> None:
        sent.append(message)

    await endpoint({**scope, "headers": list(scope["headers"])}, receive, send)
    assert sent[0]["status"] == 200, sent
    if scope["http_version"] == "2":
        assert (b"grpc-status", b"0") in sent[-1].get("headers", ()), sent
