"""Device and servers of the tests on a TPU or GPU. They need neither TensorFlow nor the exporter.

Run: `JAX_PLATFORMS=cuda,cpu python -m pytest -m accelerator tests/accelerator` (or `tpu,cpu`). The processes of the
tests use no JAX device, because a client of a GPU takes most of its memory, and a TPU has one owner.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.accelerator.device_server import DeviceServer, device_server

KINDS = {"cuda": "gpu", "tpu": "tpu"}


@pytest.fixture(scope="session")
def device() -> str:
    """Return `gpu` or `tpu`. Skips the test if JAX_PLATFORMS names neither first."""
    platform = os.environ["JAX_PLATFORMS"].partition(",")[0]
    if platform not in KINDS:
        pytest.skip("no TPU or GPU")
    return KINDS[platform]


@pytest.fixture
def serve(device: str, tmp_path: Path) -> Iterator[Callable[..., DeviceServer]]:
    """Yield a function that starts a server of base paths by model name, with environment variables."""
    with ExitStack() as stack:

        def start(models: dict[str, Path], **environment: str) -> DeviceServer:
            return stack.enter_context(device_server(device, tmp_path, models, environment))

        yield start
