"""A real Prometheus on a free loopback port, with its data in a temporary directory."""

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import yaml

from tests.support.free_ports import free_ports

Sample: TypeAlias = dict[str, Any]
_STOP_TIMEOUT_S = 30.0
_EXEMPLARS_S = 600.0


class Prometheus:
    """A client of its HTTP API."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def query(self, expr: str) -> list[Sample]:
        """Return the series of an instant query. Fails if Prometheus refuses it."""
        result: list[Sample] = self._get("query", query=expr)["result"]
        return result

    def value(self, expr: str) -> float:
        """Return the value of the only series of a query, or 0 if it has none."""
        samples = self.query(expr)
        assert len(samples) <= 1, samples
        return float(samples[0]["value"][1]) if samples else 0.0

    def exemplars(self, expr: str) -> list[Sample]:
        """Return the exemplars of the last minutes of the series of a query, each with `labels` and `value`."""
        now_s = time.time()
        series = self._get("query_exemplars", query=expr, start=str(now_s - _EXEMPLARS_S), end=str(now_s))
        return [exemplar for each in series for exemplar in each["exemplars"]]

    def families(self) -> set[str]:
        """Return the names of all scraped families, also of those without series."""
        return set(self._get("metadata"))

    def rule_health(self) -> Mapping[str, str]:
        """Return the health of each rule by name: `ok`, `err` or `unknown`."""
        groups = self._get("rules")["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}

    def _get(self, path: str, **parameters: str) -> Any:  # noqa: ANN401 - any JSON value
        reply = self._http.get(f"/api/v1/{path}", params=parameters).json()
        assert reply["status"] == "success", (parameters, reply)
        return reply["data"]


@contextlib.contextmanager
def run_prometheus(config: Mapping[str, object], folder: Path, *flags: str) -> Iterator[Prometheus]:
    """Start Prometheus with this configuration and more flags, wait until it is ready, and stop it after the body."""
    file, log = folder / "prometheus.yaml", folder / "prometheus.log"
    file.write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_ports(1)[0]}"
    command = [
        "prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address={address}", "--enable-feature=exemplar-storage", "--log.level=warn",
        *flags,
    ]  # fmt: skip
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            with httpx.Client(base_url=f"http://{address}", timeout=30.0) as http:
                wait_for(lambda: _is_ready(process, http, log))
                yield Prometheus(http)
        finally:
            process.terminate()
            process.wait(_STOP_TIMEOUT_S)


def wait_for(condition: Callable[[], bool]) -> None:
    """Poll until the condition is true. The test's timeout is the limit."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.2)


def _is_ready(process: "subprocess.Popen[bytes]", http: httpx.Client, log: Path) -> bool:
    assert process.poll() is None, log.read_text()
    try:
        return http.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False
