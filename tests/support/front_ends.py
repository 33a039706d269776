"""A running server with front-end processes: its processes, and connections to a chosen one of them."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
import httpx
import numpy as np
import psutil
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from tests.e2e.running_server import RunningServer

PATIENCE_S = 60.0
_ENGINE_MODULE = "tpuserve_server.process.engine"
_SEGMENT = "memfd:tpuserve-link"
_C = TypeVar("_C", httpx.Client, grpc.Channel)


@dataclass
class Processes:
    """The processes that a supervisor runs now."""

    server: RunningServer

    def engine(self) -> psutil.Process:
        """Return the process with the models: the only one, or the engine behind the front-ends."""
        children = psutil.Process(self.server.process.pid).children()
        engines = [each for each in children if _ENGINE_MODULE in _command(each)]
        [engine] = engines or children
        return engine

    def front_ends(self) -> set[int]:
        """Return the front-end processes."""
        children = psutil.Process(self.server.process.pid).children()
        return {each.pid for each in children if each.status() != psutil.STATUS_ZOMBIE} - {self.engine().pid}


@dataclass
class Connections:
    """A connection of each protocol to one front-end process."""

    pid: int
    http: httpx.Client
    channel: grpc.Channel
    metadata: tuple[tuple[str, str], ...]

    def rest(self, model: str, rows: object) -> httpx.Response:
        """Send a REST prediction."""
        return self.http.post(f"/v1/models/{model}:predict", json={"instances": rows})

    def grpc(self, model: str, rows: object) -> predict_pb2.PredictResponse:
        """Send a gRPC prediction. Raises grpc.RpcError."""
        request = predict_pb2.PredictRequest()
        request.model_spec.name = model
        request.inputs["x"].CopyFrom(tf.make_tensor_proto(np.array(rows, np.float32)))
        stub = prediction_service_pb2_grpc.PredictionServiceStub(self.channel)
        response: predict_pb2.PredictResponse = stub.Predict(request, timeout=PATIENCE_S, metadata=self.metadata)
        return response


@contextlib.contextmanager
def connections(server: RunningServer, pid: int, headers: dict[str, str]) -> Iterator[Connections]:
    """Connect to one front-end process. The kernel chooses, so this opens connections until one is right."""
    rest_port, grpc_port = (int(address.rpartition(":")[2]) for address in (server.rest, server.grpc))
    with contextlib.ExitStack() as stack:
        client = _connect(
            pid, rest_port, lambda: stack.enter_context(httpx.Client(base_url=server.rest, headers=headers, timeout=60))
        )
        channel = _connect(pid, grpc_port, lambda: stack.enter_context(_channel(server.grpc)))
        yield Connections(pid, client, channel, tuple(headers.items()))


def segments(pid: int) -> set[int]:
    """Return the inodes of the shared segments that a process has open or mapped."""
    found = set()
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if _SEGMENT in line:
            found.add(int(line.split()[4]))
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # It has closed meanwhile.
            if _SEGMENT in os.readlink(descriptor):
                found.add(descriptor.stat().st_ino)
    return found


def _connect(pid: int, port: int, open_one: Callable[[], _C]) -> _C:
    while True:
        before = _own_ends(port)
        opened = open_one()
        if isinstance(opened, httpx.Client):
            opened.get("/v1/models/unknown")
        else:
            grpc.channel_ready_future(opened).result(PATIENCE_S)
        [end] = _own_ends(port) - before
        if end in {each.raddr.port for each in _established(psutil.Process(pid))}:
            return opened
        opened.close()


def _own_ends(port: int) -> set[int]:
    """Return the ports of this process's ends of connections to a port."""
    return {each.laddr.port for each in _established(psutil.Process()) if each.raddr.port == port}


def _established(process: psutil.Process) -> list[Any]:  # psutil's type of an address is a union
    return [each for each in process.net_connections("tcp") if each.status == psutil.CONN_ESTABLISHED]


def _channel(address: str) -> grpc.Channel:
    # Without a pool of its own, a channel shares its connection with others.
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    return grpc.insecure_channel(address, options)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
