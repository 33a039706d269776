"""tritonclient's calls that change the server: models and shared memory. tests/oip_clients/test_clients.py runs it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.utils import InferenceServerException
from tritonclient.utils import shared_memory as shm

from tests.oip_clients.checks import LABELS, SHARED_MEMORY_PREFIX, SIMPLE, Server, refused, run_checks, same

PACKAGES = (over_http, over_grpc)
FIRST, SECOND = np.arange(16, dtype=np.int32).reshape(1, 16), np.ones((1, 16), np.int32)
TENSOR_BYTES = FIRST.nbytes


@contextmanager
def connect(package: Any, server: Server) -> Iterator[Any]:  # noqa: ANN401 - tritonclient has no types
    client = package.InferenceServerClient(server.rest if package is over_http else server.grpc)
    try:
        yield client
    finally:
        client.close()


@contextmanager
def shared(name: str, tensors: int) -> Iterator[tuple[str, Any]]:
    """Create a shared memory object for some tensors, and yield its key and its handle."""
    key = f"/{SHARED_MEMORY_PREFIX}_{name}_{os.getpid()}"
    handle = shm.create_shared_memory_region(name, key, tensors * TENSOR_BYTES)
    try:
        yield key, handle
    finally:
        shm.destroy_shared_memory_region(handle)


def check_unload_and_load(server: Server) -> None:
    for package in PACKAGES:
        with connect(package, server) as client:
            client.unload_model(LABELS)
            assert not client.is_model_ready(LABELS)
            assert client.is_model_ready(SIMPLE)
            with refused(InferenceServerException, f"'{LABELS}'"):
                client.get_model_metadata(LABELS)
            client.load_model(LABELS)
            assert client.is_model_ready(LABELS)


def check_load_with_another_batch_size(server: Server) -> None:
    with connect(over_http, server) as client:
        before = client.get_model_config(SIMPLE)["max_batch_size"]
        client.load_model(SIMPLE, config='{"max_batch_size": 16}')
        assert client.get_model_config(SIMPLE)["max_batch_size"] == 16
        client.load_model(SIMPLE)
        assert client.get_model_config(SIMPLE)["max_batch_size"] == before


def check_loads_that_fail(server: Server) -> None:
    for package in PACKAGES:
        with connect(package, server) as client:
            with refused(InferenceServerException, "failed to load 'nobody'"):
                client.load_model("nobody")
            with refused(InferenceServerException, f"failed to load '{SIMPLE}'"):
                client.load_model(SIMPLE, config='{"backend": "onnx"}')
            with refused(InferenceServerException, f"failed to load '{SIMPLE}'"):
                client.load_model(SIMPLE, config="{}", files={"file:1/model.onnx": b"model"})
            assert client.is_model_ready(SIMPLE)


def check_shared_memory(server: Server) -> None:
    for package in PACKAGES:
        with (
            connect(package, server) as client,
            shared("inputs", 2) as (input_key, inputs),
            shared("outputs", 2) as (output_key, outputs),
        ):
            client.unregister_system_shared_memory()
            client.unregister_cuda_shared_memory()
            shm.set_shared_memory_region(inputs, [FIRST, SECOND])
            client.register_system_shared_memory("inputs", input_key, 2 * TENSOR_BYTES)
            client.register_system_shared_memory("outputs", output_key, 2 * TENSOR_BYTES)
            given = [package.InferInput(name, FIRST.shape, "INT32") for name in ("INPUT0", "INPUT1")]
            wanted = [package.InferRequestedOutput(name) for name in ("OUTPUT0", "OUTPUT1")]
            for index, (one, other) in enumerate(zip(given, wanted, strict=True)):
                one.set_shared_memory("inputs", TENSOR_BYTES, offset=index * TENSOR_BYTES)
                other.set_shared_memory("outputs", TENSOR_BYTES, offset=index * TENSOR_BYTES)
            client.infer(SIMPLE, given, outputs=wanted)
            same(shm.get_contents_as_numpy(outputs, np.int32, FIRST.shape), FIRST + SECOND)
            same(shm.get_contents_as_numpy(outputs, np.int32, FIRST.shape, offset=TENSOR_BYTES), FIRST - SECOND)
            assert "inputs" in str(client.get_system_shared_memory_status())
            with refused(InferenceServerException, "'inputs'"):
                client.register_system_shared_memory("inputs", input_key, TENSOR_BYTES)
            client.unregister_system_shared_memory("inputs")
            with refused(InferenceServerException, "inputs"):
                client.infer(SIMPLE, given)
            client.unregister_system_shared_memory()


def check_shared_memory_with_another_prefix_is_refused(server: Server) -> None:
    for package in PACKAGES:
        with connect(package, server) as client, refused(InferenceServerException, "/another"):
            client.register_system_shared_memory("region", "/another", TENSOR_BYTES)


if __name__ == "__main__":
    run_checks(globals())
