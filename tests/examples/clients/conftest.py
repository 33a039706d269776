"""A server with the model `digits`, without and with TLS and a key, for the programs in other languages."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format

from tests.e2e.running_server import run_configured_server
from tests.support.access import KeyFile
from tests.support.certificates import Authority
from tests.support.saved_models import save_function
from tpuserve_client import Client
from tpuserve_formats.messages._proto.ssl_config_pb2 import SSLConfig


@dataclass(frozen=True)
class Digits:
    """Addresses of a server, its certificate authority and a key, if it needs them, and the right output."""

    grpc: str
    rest: str
    output: str
    ca: Path | None = None
    key: str = ""


@pytest.fixture(scope="module")
def base_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a model with the inputs and the outputs of the tutorial, and without training."""
    base_path = tmp_path_factory.mktemp("digits")
    weights = np.random.default_rng(3).normal(0, 1, (64, 10)).astype(np.float32)

    def classify(image: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"probabilities": tf.nn.softmax(tf.reshape(image, (-1, 64)) @ weights)}

    save_function(base_path / "1", classify, tf.TensorSpec((None, 8, 8, 1), tf.float32, "image"))
    return base_path


@pytest.fixture(scope="module")
def digits(base_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Digits]:
    """Serve to every client, with CORS."""
    flags = ("--model_name=digits", f"--model_base_path={base_path}", "--rest_api_enable_cors_support")
    log = tmp_path_factory.mktemp("log") / "log"
    with run_configured_server(log, *flags, model="digits") as server:
        yield Digits(server.grpc, server.rest, output_of(server.grpc))


@pytest.fixture(scope="module")
def secured(base_path: Path, digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Digits]:
    """Serve with TLS, to clients with a key."""
    folder = tmp_path_factory.mktemp("secured")
    keys, authority = KeyFile(folder / "credentials"), Authority(tmp_path_factory.mktemp("authority"))
    key, pem = keys.add("shop", "predict"), authority.server
    tls = SSLConfig(server_key=pem.key.read_text(), server_cert=pem.cert.read_text())
    (folder / "ssl").write_text(text_format.MessageToString(tls))
    flags = (
        "--model_name=digits", f"--model_base_path={base_path}", f"--ssl_config_file={folder / 'ssl'}",
        f"--credentials_file={keys.path}",
    )  # fmt: skip
    credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes())
    with run_configured_server(folder / "log", *flags, model="digits", credentials=credentials) as server:
        yield Digits(server.grpc, server.rest.replace("http:", "https:"), digits.output, authority.ca, key)


def output_of(address: str) -> str:
    """Return what each program prints: the predictions for a grey image and a gradient."""
    images = np.stack([np.full((8, 8, 1), 0.5), np.arange(64).reshape(8, 8, 1) / 63]).astype(np.float32)
    with Client(address) as client:
        rows = client.predict("digits", {"image": images})["probabilities"]
    lines = (f"image {index}: digit {row.argmax()}, probability {row.max():.4f}\n" for index, row in enumerate(rows))
    return "".join(lines)
