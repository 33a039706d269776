"""Tests for TensorFlow's start in a running process, and without an importable TensorFlow."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.saved_models import save_half_plus_two

LOAD = """
import gc, logging, sys, threading
from pathlib import Path
from tpuserve_server.core.errors import ServingError
from tpuserve_server.core.host_memory import HostMemory
from tpuserve_server.core.servable import VersionFiles
from tpuserve_server.core.types import ServableId
from tpuserve_server.executors.tensorflow.options import TensorFlowOptions
from tpuserve_server.executors.tensorflow.on_demand import TensorFlowOnDemand

executor = TensorFlowOnDemand(TensorFlowOptions(), HostMemory())
assert "tensorflow" not in sys.modules
"""

TWO_THREADS = """
logging.basicConfig()

class Speaks:
    def find_spec(self, name, path=None, target=None):
        if name == "tensorflow.python":
            logging.warning("something happened meanwhile")

sys.meta_path.insert(0, Speaks())
servables = []
def load():
    servables.append(executor.load(ServableId("m", 1), VersionFiles(Path(sys.argv[1]))))
threads = [threading.Thread(target=load) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert [servable.device[:15] for servable in servables] == ["CPU (TensorFlow"] * 2
assert gc.isenabled() and gc.get_freeze_count() > 100_000
assert "keras" not in sys.modules and "optree" not in sys.modules
import keras
"""

REFUSED = """
try:
    executor.load(ServableId("m", 1), VersionFiles(Path("/nowhere")))
except ServingError as error:
    print(error.code.name, error.message)
"""


def test_it_starts_once_quietly_and_without_keras_and_what_others_say_is_not_lost(tmp_path: Path) -> None:
    save_half_plus_two(tmp_path / "m")
    run = subprocess.run(
        [sys.executable, "-c", LOAD + TWO_THREADS, str(tmp_path / "m")], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout) == (0, ""), run.stderr
    before_keras = run.stderr.split("keras")[0]
    assert "something happened meanwhile" in before_keras
    assert "oneDNN custom operations are on" not in before_keras


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (
            "sys.modules['tensorflow'] = None",
            "the version's SavedModel needs TensorFlow, which is not installed: "
            "pip install 'tpuserve-server[tensorflow]'",
        ),
        (
            "sys.modules['tensorflow.python'] = None",
            "the version's SavedModel needs TensorFlow, which cannot be imported: "
            "import of tensorflow.python halted; None in sys.modules",
        ),
    ],
)
def test_a_model_that_needs_it_is_refused_where_it_cannot_be_imported(spoil: str, reason: str) -> None:
    program = f"import sys; {spoil}\n{LOAD.replace('assert', '#')}{REFUSED}"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.stdout == f"FAILED_PRECONDITION {reason}\n", run.stderr
