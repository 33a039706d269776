"""Faults of versions: swaps, roll-backs, corrupt versions, label moves and reloads. None may fail a request."""

import asyncio
import os
import shutil
import signal
import time
from pathlib import Path

import grpc
from google.protobuf import text_format
from tensorflow_serving.apis import model_management_pb2, model_service_pb2_grpc

from tests.soak.graphs import save_counted
from tests.soak.hints import PATIENCE_S
from tests.soak.question import COUNTED, LABELLED
from tests.soak.scene import Scene, expect
from tpuserve_formats.messages.model_server_config import ModelServerConfig

_RELOADS = 10


async def new_version(scene: Scene) -> str:
    """Publish a version, and wait until it serves. The server unloads the one before."""
    version = await _save(scene)
    scene.truth.begin(version, time.monotonic(), COUNTED)
    _publish(scene, version)
    await scene.wait_for_state(COUNTED, version, "AVAILABLE")
    scene.truth.finish(version, time.monotonic(), COUNTED)
    # Later roll-backs need the version before, and no other.
    for old in _published(scene)[:-2]:
        shutil.rmtree(_base(scene) / str(old))
    return f"version {version}"


async def roll_back(scene: Scene) -> str:
    """Move the highest version away, and wait until the one before serves."""
    if len(_published(scene)) < 2:
        await new_version(scene)
    before, highest = _published(scene)[-2:]
    scene.truth.begin(before, time.monotonic(), COUNTED)
    os.rename(_base(scene) / str(highest), _base(scene) / f".{highest}")
    await scene.wait_for_state(COUNTED, before, "AVAILABLE")
    await scene.wait_for_state(COUNTED, highest, "END")
    scene.truth.finish(before, time.monotonic(), COUNTED)
    shutil.rmtree(_base(scene) / f".{highest}")
    return f"version {highest} to {before}"


async def corrupt_version(scene: Scene) -> str:
    """Publish a version with a changed file. The one before goes on."""
    version = await _save(scene)
    graph = _base(scene) / f".{version}" / "saved_model.pb"
    content = bytearray(graph.read_bytes())
    content[len(content) // 2] ^= 1
    graph.write_bytes(content)
    _publish(scene, version)
    error = await scene.wait_for_state(COUNTED, version, "END")
    expect("sha256" in error, True)
    shutil.rmtree(_base(scene) / str(version))
    return f"version {version} refused"


async def move_labels(scene: Scene) -> str:
    """Exchange the versions of two labels with one reload, which the file of the models does not have.

    A new process must keep it.
    """
    server = scene.server
    (first, one), (second, two) = server.labels.items()
    server.labels = {first: two, second: one}
    now_s = time.monotonic()
    for label, version in server.labels.items():
        scene.truth.begin(version, now_s, LABELLED, label)
    expect(await _reload(scene), "OK")
    now_s = time.monotonic()
    for label, version in server.labels.items():
        scene.truth.finish(version, now_s, LABELLED, label)
    return f"{first} to {two}, {second} to {one}"


async def reload(scene: Scene) -> str:
    """Reload ten times without a change. Then add a model with SIGHUP, and remove it with a request."""
    for _ in range(_RELOADS):
        expect(await _reload(scene), "OK")
    server = scene.server
    name, version = "late", 1
    if not server.base(name).exists():
        await asyncio.to_thread(save_counted, server.base(name) / str(version), version)
    server.extra_models = (name,)
    server.write_config()
    start = server.log_size()
    server.process.send_signal(signal.SIGHUP)
    await server.wait_for_log("Applied the changed model configuration file", start)
    await scene.wait_for_state(name, version, "AVAILABLE")
    server.extra_models = ()
    expect(await _reload(scene), "OK")
    expect(await server.get_status(f"/v1/models/{name}/metadata"), 404)
    return f"{_RELOADS + 2} reloads"


async def _reload(scene: Scene) -> str:
    """Send a reload with the present configuration, and return its code."""
    request = model_management_pb2.ReloadConfigRequest()
    config = text_format.Parse(scene.server.config(), ModelServerConfig())
    request.config.ParseFromString(config.SerializeToString())
    address = scene.server.address
    credentials = grpc.ssl_channel_credentials(address.ca.read_bytes())
    async with grpc.aio.secure_channel(address.grpc, credentials) as channel:
        stub = model_service_pb2_grpc.ModelServiceStub(channel)
        try:
            await stub.HandleReloadConfigRequest(request, timeout=PATIENCE_S)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
    return "OK"


def _base(scene: Scene) -> Path:
    return scene.server.base(COUNTED)


def _published(scene: Scene) -> list[int]:
    return sorted(int(path.name) for path in _base(scene).iterdir() if path.name.isdigit())


async def _save(scene: Scene) -> int:
    """Save the next version under a name that the server ignores."""
    version = scene.next_version()
    await asyncio.to_thread(save_counted, _base(scene) / f".{version}", version)
    return version


def _publish(scene: Scene, version: int) -> None:
    os.rename(_base(scene) / f".{version}", _base(scene) / str(version))
