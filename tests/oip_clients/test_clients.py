"""tritonclient and KServe's clients, unchanged, with a server. They run in `.oip-clients`."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf

from tests.contract.serving_models import save_half_plus_two, save_kinds
from tests.e2e.running_server import RunningServer, run_configured_server
from tests.oip_clients.checks import HALF, HALF_VERSIONS, KINDS, LABELS, SHARED_MEMORY_PREFIX, SIMPLE, VERSION
from tests.support.optional import cannot_run, find_oip_clients, needs
from tests.support.saved_models import save_function
from tests.triton_examples.models import save_image_labels, save_simple

pytestmark = pytest.mark.xdist_group(__name__)

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/how-to/call/other-clients.md"
# The model of the guide.
DIGITS = "digits"
PROGRAMS = ("tritonclient_checks", "tritonclient_async_checks", "tritonclient_admin_checks", "kserve_checks")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save the models, and return the file that configures them."""
    folder = tmp_path_factory.mktemp("oip-clients")
    save_kinds(folder / KINDS / VERSION)
    save_simple(folder / SIMPLE / VERSION)
    save_image_labels(folder / LABELS / VERSION)
    save_digits(folder / DIGITS / VERSION)
    for version, plus in zip(HALF_VERSIONS, (2.0, 3.0), strict=True):
        save_half_plus_two(folder / HALF / version, plus=plus)
    config = folder / "models.config"
    entries = "".join(
        f'config {{ name: "{name}" base_path: "{folder / name}" model_platform: "tensorflow"'
        " model_version_policy { all {} } }\n"
        for name in (KINDS, SIMPLE, LABELS, DIGITS, HALF)
    )
    config.write_text(f"model_config_list {{ {entries} }}")
    return config


@pytest.fixture(scope="module")
def python() -> Path:
    return find_oip_clients() or cannot_run("there is no whole .oip-clients: make oip-clients")


@pytest.fixture(scope="module")
def server(python: Path, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("server") / "log"
    flags = (
        f"--model_config_file={models}", f"--shared_memory_prefix={SHARED_MEMORY_PREFIX}",
        "--enable_kserve_v1_readiness",
    )  # fmt: skip
    with run_configured_server(log, *flags, model=HALF) as server:
        yield server


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_call_of_the_client_is_served(python: Path, server: RunningServer, program: str) -> None:
    command = [str(python), "-m", f"tests.oip_clients.{program}", server.grpc, server.rest.removeprefix("http://")]
    done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert outcomes
    if errors := [f"{name}: {error}" for name, error in outcomes.items() if error]:
        pytest.fail("\n".join(errors), pytrace=False)


@pytest.mark.parametrize("section", ["tritonclient", "KServe"])
def test_documented_code_runs(python: Path, server: RunningServer, section: str) -> None:
    code = "\n".join(code_blocks(section, "python"))
    assert code
    for documented, address in (("localhost:8500", server.grpc), ("localhost:8501", server.rest.partition("//")[2])):
        assert documented in code
        code = code.replace(documented, address)
    done = subprocess.run([str(python), "-c", code], env=_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "0.1" in done.stdout


@needs("curl")
def test_documented_curl_lines_run(server: RunningServer, tmp_path: Path) -> None:
    (lines,) = code_blocks("curl", "bash")
    lines = lines.replace("localhost:8501", server.rest).replace("curl ", "curl -sSf ")
    done = subprocess.run(["bash", "-ec", lines], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith('{"predictions":[[0.1,0.1,')
    assert '"shape":[1,10],"data":[0.1,0.1,' in done.stdout


def code_blocks(section: str, language: str) -> list[str]:
    """Return the blocks of code in a section of the guide."""
    text = GUIDE.read_text(encoding="utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def save_digits(path: Path) -> None:
    """Save a model with the tensors of examples/digits, which finds all digits equally likely."""

    def classify(image: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"probabilities": tf.ones([tf.shape(image)[0], 10]) / 10.0}

    save_function(path, classify, tf.TensorSpec([None, 8, 8, 1], tf.float32, "image"))


def _environment() -> dict[str, str]:
    """Let the program write bytecode. Compiling kserve at each start takes seconds."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
