"""Test that a server of device programs never imports TensorFlow, according to Python's import log.

It covers recorded requests and the request log.
"""

from pathlib import Path

import numpy as np
import psutil
import pytest
import tensorflow as tf

from tests.e2e.running_server import RunningServer, run_server
from tests.support.device_programs import double_and_add, write_programs
from tests.support.saved_models import predict_request, write_warmup
from tpuserve_client import Client

pytestmark = [pytest.mark.slow]

MAX_RSS_BYTES = 600 * 10**6


def test_device_programs_are_served_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = tmp_path / "m" / "1"
    write_warmup(version, predict_request(x=[[1.0, 2.0]]))
    write_programs(version, double_and_add())
    logged = tmp_path / "requests" / "log"
    flags = ("--device=cpu", f"--request_log_path_prefix={logged}", "--request_log_format=tfrecord")
    # Like `python -X importtime`: a line on stderr per module, including the serving process.
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    with run_server(version.parent, tmp_path / "log", *flags) as server:
        for address in (server.grpc, server.rest):
            with Client(address) as client:
                assert client.predict("m", {"x": np.ones((3, 2), np.float32)})["double"].tolist() == [[2, 2]] * 3
                assert client.metadata("m").version == 1
        assert rss_bytes(server) <= MAX_RSS_BYTES
        assert server.terminate() == 0
    log = (tmp_path / "log").read_text()
    imported = {
        line.rpartition("|")[2].strip().partition(".")[0] for line in log.splitlines() if "import time:" in line
    }
    assert {"jax", "tpuserve_server"} <= imported
    assert not {"tensorflow", "tensorflow_serving", "keras"} & imported
    assert "1 recorded request, " in log
    (file,) = logged.parent.iterdir()
    assert len(list(tf.data.TFRecordDataset(str(file)))) == 2


def rss_bytes(server: RunningServer) -> int:
    """Return the resident memory of the server's largest process, in bytes."""
    process = psutil.Process(server.process.pid)
    return max(each.memory_info().rss for each in (process, *process.children(recursive=True)))
