"""Tests that the JavaScript programs of the documentation get the server's answers, in Node and in a browser."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.examples.clients.conftest import Digits
from tests.support.optional import needs
from tests.support.web_driver import drive_browser
from tpuserve_client.cli import protos

JAVASCRIPT = Path(__file__).parents[3] / "examples" / "clients" / "javascript"
pytestmark = [needs("node"), pytest.mark.slow, pytest.mark.xdist_group(__name__)]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the packages of the lock beside copies of the programs, and write the `.proto` files."""
    project = tmp_path_factory.mktemp("project")
    shutil.copytree(JAVASCRIPT, project, dirs_exist_ok=True)
    subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=project, check=True)
    assert CliRunner().invoke(protos, [str(project / "protos")]).exit_code == 0
    return project


def run(project: Path, program: str, digits: Digits, **variables: str) -> subprocess.CompletedProcess[str]:
    address = digits.rest if program == "rest.mjs" else digits.grpc
    # Node warns about TLS to an address without a name.
    command = ["node", program, address.replace("127.0.0.1", "localhost")]
    return subprocess.run(
        command, cwd=project, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("program", ["rest.mjs", "grpc.mjs"])
def test_programs_print_the_predictions(project: Path, digits: Digits, program: str) -> None:
    done = run(project, program, digits)
    assert (done.stdout, done.stderr, done.returncode) == (digits.output, "", 0)


@pytest.mark.parametrize(("program", "variable"), [("rest.mjs", "NODE_EXTRA_CA_CERTS"), ("grpc.mjs", "TPUSERVE_CA")])
def test_programs_use_tls_and_a_key(project: Path, secured: Digits, program: str, variable: str) -> None:
    done = run(project, program, secured, TPUSERVE_API_KEY=secured.key, **{variable: str(secured.ca)})
    assert (done.stdout, done.stderr, done.returncode) == (secured.output, "", 0)


@pytest.mark.parametrize(
    ("program", "variable", "code"),
    [("rest.mjs", "NODE_EXTRA_CA_CERTS", "401: "), ("grpc.mjs", "TPUSERVE_CA", "UNAUTHENTICATED: ")],
)
def test_a_missing_key_is_one_line(project: Path, secured: Digits, program: str, variable: str, code: str) -> None:
    done = run(project, program, secured, **{variable: str(secured.ca)})
    assert done.returncode == 1
    assert done.stderr.startswith(code)
    assert done.stderr.count("\n") == 1


@needs("chromium", "chromedriver")
def test_a_page_of_another_origin_predicts_a_drawing(digits: Digits, tmp_path: Path) -> None:
    with drive_browser(tmp_path / "profile") as page:
        page.open(f"{(JAVASCRIPT / 'page.html').as_uri()}?server={digits.rest}")
        page.click("#drawing")
        page.click("#predict")
        shown = page.wait_for_text("#answer", "probability")
        assert shown.startswith("This is a ")
        assert page.find_complaints() == []


@needs("chromium", "chromedriver")
def test_a_page_shows_the_error_of_the_server(secured: Digits, tmp_path: Path) -> None:
    with drive_browser(tmp_path / "profile", "--ignore-certificate-errors") as page:
        page.open(f"{(JAVASCRIPT / 'page.html').as_uri()}?server={secured.rest}")
        page.click("#predict")
        assert page.wait_for_text("#answer", "No prediction") == "No prediction: Failed to fetch"
