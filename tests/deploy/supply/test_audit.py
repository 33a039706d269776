"""Tests of the audit, with the real pip-audit and a server with the API of the database of vulnerabilities (OSV)."""

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.supply.audit import PIP_AUDIT
from tests.support.free_ports import free_ports
from tests.support.optional import skip_unless

pytestmark = skip_unless(PIP_AUDIT.exists(), "needs make audit")

ROOT = Path(__file__).parents[3]


class Database(http.server.ThreadingHTTPServer):
    """Answers look-ups. `vulnerable` are the names of the packages with a vulnerability."""

    daemon_threads = True

    def __init__(self, vulnerable: set[str]) -> None:
        super().__init__(("127.0.0.1", 0), _LookUp)
        self.vulnerable = vulnerable
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/query"


class _LookUp(http.server.BaseHTTPRequestHandler):
    server: Database

    def do_POST(self) -> None:
        query = json.loads(self.rfile.read(int(self.headers["content-length"])))
        name = query["package"]["name"]
        self.server.asked.append(f"{name} {query['version']}")
        package = {"name": name, "ecosystem": "PyPI"}
        known = {"id": "GHSA-test", "summary": "It runs code.", "affected": [{"package": package, "ranges": []}]}
        body = json.dumps({"vulns": [known]} if name in self.server.vulnerable else {}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    server = Database(request.param)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def audit(url: str, *names: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deploy.supply.audit", *names]
    environment = {**os.environ, "PIP_AUDIT_OSV_URL": url}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("database", [{"jinja2"}], indirect=True)
def test_lock_without_a_known_vulnerability_passes(database: Database) -> None:
    audited = audit(database.url, "bootstrap")
    assert (audited.returncode, audited.stdout) == (0, "bootstrap.lock: "), audited.stderr
    assert "No known vulnerabilities found" in audited.stderr
    assert [asked.partition(" ")[0] for asked in database.asked] == ["jinja2", "uv"]


@pytest.mark.parametrize("database", [{"jinja2", "uv"}], indirect=True)
def test_vulnerability_is_named_and_fails(database: Database) -> None:
    audited = audit(database.url, "bootstrap")
    assert audited.returncode == 1
    assert "uv" in audited.stdout
    assert "GHSA-test" in audited.stdout


@pytest.mark.parametrize("database", [set()], indirect=True)
def test_database_without_knowledge_does_not_pass(database: Database) -> None:
    audited = audit(database.url, "bootstrap")
    assert audited.returncode == 3
    assert audited.stdout.startswith("NOT CHECKED for vulnerabilities: the service knows no vulnerability of jinja2==")


def test_missing_database_does_not_pass() -> None:
    audited = audit(f"http://127.0.0.1:{free_ports(1)[0]}/v1/query", "bootstrap")
    assert audited.returncode == 3
    assert audited.stdout.startswith("NOT CHECKED for vulnerabilities: the service does not respond (")


def test_ci_goes_on_without_a_database_and_says_so() -> None:
    audited = audit(f"http://127.0.0.1:{free_ports(1)[0]}/v1/query", "--if-reachable", "bootstrap")
    assert (audited.returncode, audited.stdout.partition(":")[0]) == (0, "NOT CHECKED for vulnerabilities")


def test_unknown_lock_is_an_error() -> None:
    audited = audit("http://127.0.0.1:9/", "none")
    assert (audited.returncode, audited.stderr) == (2, "There is no requirements/none.lock.\n")
