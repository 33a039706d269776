"""Processes of plain Locust, headless and with its web page."""

import json
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tpuserve_loadtests
from tests.loadtests.doubling_server import UNRECORDED, Doubling
from tests.support.free_ports import free_ports

LOCUST = str(Path(sys.executable).with_name("locust"))
# The file that `tpuserve loadtest locustfile` prints.
LOCUSTFILE = Path(tpuserve_loadtests.__file__).with_name("locustfiles") / "predict.py"
# The runs share a small machine with other processes, and the tests are not about the generator's limits.
BUSY_IS_FINE = ("--generator-limit", "note")
# Longest wait for a process. A busy machine needs a minute to import Locust.
_PATIENCE_S = 240


def headless(
    server: Doubling,
    *arguments: str,
    file: Path = LOCUSTFILE,
    requests: int = 100,
    users: tuple[str, ...] = ("-u", "4", "-r", "4"),
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run `users` until the server has received this number of further requests, or the run ends.

    The packaged locustfile records no golden responses unless the arguments say so. `variables` are added to the
    environment, which otherwise has no address.
    """
    command = [LOCUST, "-f", str(file), "--headless", *users, "--only-summary"]
    command += [*BUSY_IS_FINE, *(UNRECORDED if file == LOCUSTFILE else ()), *arguments]
    if "--processes" in arguments:  # Locust's default port may belong to another test
        (port,) = map(str, free_ports(1))
        command += ["--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--master-port", port]
    enough = len(server.rows) + requests
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={"PATH": "/usr/bin:/bin", **variables}
    ) as process:
        try:
            while process.poll() is None and len(server.rows) < enough:
                time.sleep(0.05)
            process.terminate()
            output, errors = process.communicate(timeout=_PATIENCE_S)
        finally:
            process.kill()
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def await_requests(server: Doubling, count: int) -> None:
    """Wait until the server has received this number of requests."""
    until_s = time.monotonic() + _PATIENCE_S
    while len(server.rows) < count:
        assert time.monotonic() < until_s, f"{len(server.rows)} of {count} requests"
        time.sleep(0.05)


def table_of(output: str) -> dict[str, tuple[int, int]]:
    """Return the requests and failures of each line of the printed table."""
    rows = [[cell.strip() for cell in line.split("│")] for line in output.splitlines() if line.startswith("│")]
    return {row[1]: (int(row[2].replace(",", "")), int(row[3].replace(",", ""))) for row in rows}


def requests_in(output: str) -> dict[str, int]:
    """Return the requests of each line of the printed table."""
    return {name: requests for name, (requests, _) in table_of(output).items()}


class Page:
    """Locust's web page, with a browser's requests. After the block, `output` and `errors` are the process's texts."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self.output = self.errors = ""

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self._url + path, timeout=30) as answer:
            return bytes(answer.read())

    def start(self, **fields: str) -> dict[str, Any]:
        form = urllib.parse.urlencode({"user_count": "2", "spawn_rate": "2", **fields}).encode()
        with urllib.request.urlopen(self._url + "/swarm", form, timeout=60) as answer:
            document: dict[str, Any] = json.loads(answer.read())
            return document

    def stop(self) -> None:
        with urllib.request.urlopen(self._url + "/stop", b"", timeout=60) as answer:
            assert json.loads(answer.read())["success"]

    def wait_for(self, name: str) -> dict[str, Any]:
        """Wait for statistics of a name and return them."""
        until_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until_s:
            stats = json.loads(self.get("/stats/requests"))["stats"]
            found = [line for line in stats if line["name"] == name and line["num_requests"]]
            if found:
                return dict(found[0])
            time.sleep(0.2)
        raise AssertionError(f"no requests of {name}")

    def wait_until_there(self) -> None:
        until_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                self.get("/")
                return
            except OSError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.2)


@contextmanager
def web_page(*arguments: str, file: Path = LOCUSTFILE) -> Iterator[Page]:
    """Run Locust with its web page, which must end with exit code 0 after SIGTERM."""
    (port,) = free_ports(1)
    page = Page(port)
    command = [LOCUST, "-f", str(file), "--web-host", "127.0.0.1", "--web-port", str(port), *BUSY_IS_FINE]
    command += [*(UNRECORDED if file == LOCUSTFILE else ()), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            page.wait_until_there()
            yield page
        finally:
            process.terminate()
            page.output, page.errors = process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == 0, page.errors
    assert "Traceback" not in page.errors
