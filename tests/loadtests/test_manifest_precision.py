"""Tests that a tolerance without a manifest, on the server or in the directory, is unknown and reported as such."""

import json
from pathlib import Path

import numpy as np
import pytest

from tpuserve_client.errors import InvalidArgument
from tpuserve_client.exchange import Exchange, Reply
from tpuserve_client.model import ModelSpec
from tpuserve_formats.manifest import MANIFEST_FILE
from tpuserve_formats.messages import official
from tpuserve_loadtests.golden.tolerance import Tolerance, fetch_precision, read_precision
from tpuserve_loadtests.requests.protocols import Protocol

SPEC = ModelSpec("m", 3)


def refuse(exchange: Exchange) -> Reply:
    """Respond like TensorFlow Serving over gRPC."""
    request = official.GetModelMetadataRequest.FromString(exchange.body)
    raise InvalidArgument(f"Metadata field {request.metadata_field[0]} is not supported")


def ignore(exchange: Exchange) -> Reply:
    """Respond like TensorFlow Serving over REST."""
    assert exchange.path.startswith("/v1/models/m/versions/3/metadata")
    return Reply(json.dumps({"model_spec": {"name": "m", "version": "3"}, "metadata": {"signature_def": {}}}).encode())


@pytest.mark.parametrize(
    ("protocol", "send"),
    [
        ("grpc", refuse),
        ("oip_grpc", refuse),
        ("oip_http", ignore),
        ("grpc", lambda _: Reply(official.GetModelMetadataResponse().SerializeToString())),
        ("grpc", lambda _: Reply(b"\xff")),
        ("rest", ignore),
        ("rest", lambda _: Reply(b"[]")),
        ("rest", lambda _: Reply(b"<html>")),
    ],
)
def test_a_server_that_reports_no_precision_has_none(protocol: Protocol, send: object) -> None:
    assert fetch_precision(send, protocol, SPEC) is None  # type: ignore[arg-type] # one of several kinds


@pytest.mark.parametrize("manifest", ["", "[]", "{}", '{"compute_dtype": "float32", "parity": {"atol": "x"}}'])
def test_a_directory_without_a_readable_manifest_has_none(tmp_path: Path, manifest: str) -> None:
    assert read_precision(tmp_path) is None
    (tmp_path / MANIFEST_FILE).parent.mkdir(parents=True)
    (tmp_path / MANIFEST_FILE).write_text(manifest)
    assert read_precision(tmp_path) is None


def test_the_limit_says_that_there_is_no_manifest() -> None:
    allowed = Tolerance(versions=(None, None)).of(np.dtype(np.float32))
    assert str(allowed) == ("1e-05 + 0.0001 * |golden| (float32, without a manifest; change with --atol/--rtol)")
