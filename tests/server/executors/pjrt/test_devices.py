import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tpuserve_server.executors.pjrt import devices

NAMES = ("TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES")
LOOK = """
from tpuserve_server.executors.pjrt.devices import FailedPrecondition, find_devices
try:
    find_devices("tpu")
except FailedPrecondition as error:
    print(error.message)
"""


@pytest.fixture
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "")  # restores the variable at the end, even if the test sets it
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("_unset")
@pytest.mark.parametrize(
    ("jax_found_none", "drivers", "told"),
    [("1", [], True), ("1", ["/dev/accel0"], False), ("", [], False)],
    ids=["no TPU", "the user has said so, but there is one", "a TPU"],
)
def test_libtpu_is_told_of_a_tpu_only_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, jax_found_none: str, drivers: list[str], told: bool
) -> None:
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", jax_found_none)
    monkeypatch.setattr(devices, "glob", lambda pattern: [path for path in drivers if path.startswith(pattern[:-1])])
    devices._quieten_libtpu()
    assert [name in os.environ for name in NAMES] == [told, told]


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="no libtpu here")
@pytest.mark.skipif(bool(list(Path("/dev").glob("accel*"))), reason="a TPU is here")
def test_a_machine_without_a_tpu_gets_the_reason_and_no_line_of_libtpus() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", *NAMES)}
    done = subprocess.run([sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True, timeout=100)
    assert done.stdout.startswith("PJRT found only cpu")
    assert "E0000" not in done.stderr
    assert "InitGoogle" not in done.stderr
