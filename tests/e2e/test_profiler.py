"""Tests for traces that TensorBoard requests from servers under load."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import message_factory
from google.protobuf.message import Message
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

from tests.e2e.running_server import RunningServer
from tests.support.trace_events import find_facts, find_threads
from tpuserve_client import Client
from tpuserve_server.wire.profiler_proto import PROFILER_SERVICE


@contextlib.contextmanager
def load(server: RunningServer) -> Iterator[list[int]]:
    """Send predictions one at a time in a thread. Yield the response count, and raise any failure at exit."""
    ended, served = threading.Event(), [0]
    failures: list[Exception] = []

    def run() -> None:
        with Client(server.grpc) as client:
            while not ended.is_set():
                client.predict(server.model, {"x": np.ones((1, 2), np.float32)})
                served[0] += 1

    def run_and_tell() -> None:
        try:
            run()
        except Exception as error:  # raised again in the test's thread
            failures.append(error)

    thread = threading.Thread(target=run_and_tell)
    thread.start()
    try:
        yield served
    finally:
        ended.set()
        thread.join()
    assert not failures


@pytest.mark.slow
def test_a_trace_has_the_models_operations_and_serving_goes_on(server: RunningServer, tmp_path: Path) -> None:
    with load(server) as served:
        tf.profiler.experimental.client.trace(f"grpc://{server.grpc}", str(tmp_path), 1000)
    assert served[0] > 0
    (trace,) = tmp_path.rglob("*.xplane.pb")
    space = XSpace.FromString(trace.read_bytes())
    (plane,) = [plane for plane in space.planes if plane.name == "/host:CPU"]
    assert sum(len(line.events) for line in plane.lines) > served[0]
    names = {event.name for event in plane.event_metadata.values()}
    assert "SessionRun" in names
    assert any("mul" in name.lower() for name in names)
    facts = find_facts(trace.read_bytes(), "batch calculator:3")
    assert (facts["signature"], facts["requests"], facts["rows"], facts["bucket"]) == ("serving_default", 1, 1, 1)
    # The event loop runs short batches itself.
    threads = find_threads(trace.read_bytes(), "batch calculator:3")
    assert threads
    assert threads <= {"device-0", Path(sys.executable).name}


@pytest.mark.slow
def test_a_server_writes_nothing_where_a_client_says(server: RunningServer, tmp_path: Path) -> None:
    request = message(
        "ProfileRequest",
        opts={"version": 1, "host_tracer_level": 2, "duration_ms": 200},
        repository_root=str(tmp_path),
        session_id="s",
        host_name="h",
    )
    with load(server), grpc.insecure_channel(server.grpc) as channel:
        profile: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/tensorflow.ProfilerService/Profile")
        answer = profile(request.SerializeToString(), timeout=60)
    response = message("ProfileResponse")
    response.ParseFromString(answer)
    assert [field.name for field, _ in response.ListFields()] == ["tool_data"]
    assert list(tmp_path.iterdir()) == []


def message(name: str, **fields: object) -> Message:
    """Return a message of the service. Its only descriptor is the server's own."""
    described = PROFILER_SERVICE.file.message_types_by_name[name]
    return message_factory.GetMessageClass(described)(**fields)
