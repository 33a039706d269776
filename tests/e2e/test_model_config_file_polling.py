"""Tests for --model_config_file_poll_wait_seconds on real servers: valid changes apply, invalid changes do not."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.test_config_files import START_TIMEOUT_S
from tests.support.free_ports import free_ports
from tests.support.saved_models import save_half_plus_two
from tpuserve_client import Client, TpuserveError

pytestmark = [pytest.mark.slow]


class TalkingServer:
    """A server whose output the test reads line by line."""

    def __init__(self, config: Path) -> None:
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "tpuserve_server", "--bind_address=127.0.0.1", f"--port={port}",
                "--rest_api_port=0", f"--model_config_file={config}",
                "--model_config_file_poll_wait_seconds=0.05", "--file_system_poll_wait_seconds=0.05",
            ],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def hear(self, what: str) -> str:
        """Wait for a line that contains `what`."""
        assert self._process.stdout is not None
        lines = []
        for line in self._process.stdout:
            lines.append(line)
            if what in line:
                return line
        raise AssertionError(f"it ended without {what!r}: {''.join(lines)}")

    def finish(self) -> str:
        """Send SIGTERM and return the remaining output."""
        self._process.terminate()
        message, _ = self._process.communicate(timeout=60)
        assert self._process.returncode == 0, message
        return message

    def kill(self) -> None:
        """Kill the server if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


@contextlib.contextmanager
def talking(config: Path) -> Iterator[TalkingServer]:
    server = TalkingServer(config)
    try:
        yield server
    finally:
        server.kill()


def configured(folder: Path, **labels: int | None) -> str:
    """Return a ModelServerConfig of these models. Each model with a number has the label `stable` for that version."""
    models = [
        f'config {{ name: "{name}" base_path: "{folder}/{name}" model_platform: "tensorflow" '
        "model_version_policy { all {} } "
        + (f'version_labels {{ key: "stable" value: {number} }}' if number else "")
        + "}"
        for name, number in labels.items()
    ]
    return f"model_config_list {{ {' '.join(models)} }}"


def replace(file: Path, text: str) -> None:
    """Replace the file atomically."""
    new = file.with_suffix(".new")
    new.write_text(text)
    os.replace(new, file)


def stable(client: Client, model: str) -> int | None:
    version: int | None = client.predict(model, {"x": np.ones((1, 1), np.float32)}, label="stable").version
    return version


def test_changes_are_served_and_mistakes_change_nothing(tmp_path: Path) -> None:
    for path in ("a/1", "a/2", "b/1", "c/1"):
        save_half_plus_two(tmp_path / path)
    file = tmp_path / "models.config"
    file.write_text(configured(tmp_path, a=1, b=None))
    with talking(file) as server, Client(server.address) as client:
        server.hear("tpuserve is ready")
        assert stable(client, "a") == 1

        replace(file, "model_config_list {")
        assert "ModelServerConfig: 1:19: " in server.hear("refused")
        replace(file, configured(tmp_path, a=9))
        assert "Request to assign label to version 9 of model a" in server.hear("refused")
        assert stable(client, "a") == 1
        assert client.predict("b", {"x": np.ones((1, 1), np.float32)}).version == 1

        replace(file, configured(tmp_path, a=2, c=None))
        server.hear("Applied the changed")
        client.wait_until_ready(START_TIMEOUT_S, "c")
        assert stable(client, "a") == 2
        with pytest.raises(TpuserveError, match="Servable not found for request: Latest"):
            client.predict("b", {"x": np.ones((1, 1), np.float32)})

        message = server.finish()
        assert "refused" not in message
        assert "Traceback" not in message
