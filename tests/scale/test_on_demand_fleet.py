"""A thousand models in a memory that holds twenty: every request is answered, and the limit holds."""

import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.e2e.running_server import run_configured_server
from tests.support.saved_models import save_mlp, write_manifest
from tpuserve_client import Client

COUNT = 1000
HOLDS = 20
CLIENTS = 8
REQUESTS = 600
PAGE = re.compile(r"^(\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_thousand_models_share_a_memory_for_twenty(tmp_path: Path) -> None:
    template = save_mlp(tmp_path / "template" / "1")
    write_manifest(template)
    names = [f"m{number:04d}" for number in range(COUNT)]
    for name in names:
        shutil.copytree(template, tmp_path / name / "1", copy_function=os.link)
    config = tmp_path / "models.config"
    # The last model stays, so that the server is ready when it serves.
    policies = dict.fromkeys(names, "on_demand") | {names[-1]: "always"}
    configs = "\n".join(
        f"config {{ name: '{name}' base_path: '{tmp_path / name}' model_platform: 'tensorflow' "
        f"load_policy: '{policy}' }}"
        for name, policy in policies.items()
    )
    config.write_text(f"model_config_list {{ {configs} }}")
    flag = f"--model_config_file={config}"
    with run_configured_server(tmp_path / "log", flag, model=names[-1]) as server:
        # One at a time, because the allocations of loads cannot be told apart. The first one counts only files.
        for name in names[:5]:
            answer_all(server.grpc, [name])
        size = float(np.median(figures(server.rest)["tpuserve_model_memory_bytes"]))
    limit = int(size * HOLDS)
    with run_configured_server(tmp_path / "log2", flag, f"--model_memory_bytes={limit}", model=names[-1]) as server:
        draw = np.random.default_rng(1)
        # A few popular models, and many that rarely get a request.
        wanted = [names[number % COUNT] for number in draw.zipf(1.2, REQUESTS)]
        answer_all(server.grpc, wanted)
        found = figures(server.rest)
        held = found["tpuserve_model_memory_bytes"]
        assert sum(held) <= 2 * limit
        assert found["tpuserve_on_demand_loads_total"][0] >= len(set(wanted))
        assert sum(found["tpuserve_on_demand_unloads_total"]) >= len(set(wanted)) - len(held)


def answer_all(address: str, names: list[str]) -> None:
    """Send a request to each model, several at a time, and check every answer."""
    x = np.ones((1, 64), np.float32)
    with Client(address) as client, ThreadPoolExecutor(CLIENTS) as clients:
        answers = list(clients.map(lambda name: client.predict(name, {"x": x})["y"], names))
    assert [answer.shape for answer in answers] == [(1, 10)] * len(names)
    assert all(np.array_equal(answer, answers[0]) for answer in answers)


def figures(address: str) -> dict[str, list[float]]:
    """Return the values of each metric."""
    found: dict[str, list[float]] = {}
    for name, value in PAGE.findall(httpx.get(f"{address}/metrics", timeout=60).text):
        found.setdefault(name, []).append(float(value))
    return found
