"""Tests for TensorFlow's start in a running process, and without an importable TensorFlow."""

import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.lite.experimental.microfrontend.ops import gen_audio_microfrontend_op

from tests.support.saved_models import save_function, save_half_plus_two

LOAD = """
import gc, logging, sys, threading
from pathlib import Path
import numpy as np
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.system.memory import HostMemory
from tpuserve_server.core.terms.servable import VersionFiles
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.executors.tensorflow import TensorFlowOptions
from tpuserve_server.executors.tensorflow.on_demand import TensorFlowOnDemand

executor = TensorFlowOnDemand(TensorFlowOptions(), HostMemory())
assert "tensorflow" not in sys.modules
def run(servable, **inputs):
    names = list(servable.signatures["serving_default"].outputs)
    return servable.dispatch("serving_default", inputs, names).result()
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
assert gc.isenabled() and gc.get_freeze_count() > 10_000
# The whole package would be 1,600 modules.
assert "tensorflow" not in sys.modules and sum(name.startswith("tensorflow") for name in sys.modules) < 100
assert "keras" not in sys.modules and "optree" not in sys.modules
print("the whole package", file=sys.stderr)
rare = executor.load(ServableId("rare", 1), VersionFiles(Path(sys.argv[2])))
assert run(rare, audio=np.zeros(16_000, np.int16))["features"].shape[1] == 32
import tensorflow
assert "keras" not in sys.modules
for servable in servables:
    assert run(servable, x=np.ones((1, 1), np.float32))["y"] == tensorflow.constant(2.5)
    try:
        run(servable, x=np.ones((1, 1), np.int8))
    except ServingError as error:
        assert error.code.name == "INVALID_ARGUMENT", error
    else:
        raise AssertionError("the session ran with another dtype")
"""

PLUGINS = """
sys.path.append(sys.argv[1])
executor.load(ServableId("m", 1), VersionFiles(Path(sys.argv[1], "m")))
assert "tensorflow" in sys.modules
"""

RETURNS = """
import os
def resident_mb():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6
def load():
    servable = executor.load(ServableId("m", 1), VersionFiles(Path(sys.argv[1])))
    run(servable, x=np.ones((1, 4000), np.float32))
    return servable
load().close()
before = resident_mb()
servable = load()
assert resident_mb() > before + 60
servable.close()
assert resident_mb() < before + 16, (before, resident_mb())
"""

REFUSED = """
try:
    executor.load(ServableId("m", 1), VersionFiles(Path("/nowhere")))
except ServingError as error:
    print(error.code.name, error.message)
"""


def test_it_starts_once_quietly_and_in_part_and_completes_itself_for_a_rare_operation(tmp_path: Path) -> None:
    save_half_plus_two(tmp_path / "m")
    save_function(tmp_path / "rare", microfrontend, tf.TensorSpec([None], tf.int16, "audio"))
    run = run_program(LOAD + TWO_THREADS, tmp_path / "m", tmp_path / "rare")
    written = run.stderr.partition("the whole package")[0]
    assert "something happened meanwhile" in written
    assert "oneDNN custom operations are on" not in written


def test_memory_of_an_unloaded_version_returns_to_the_system(tmp_path: Path) -> None:
    module = tf.Module()
    module.weights = tf.Variable(tf.ones([4000, 4000]))
    module.serve = tf.function(
        lambda x: {"y": x @ module.weights}, input_signature=[tf.TensorSpec([None, 4000], tf.float32, "x")]
    )
    tf.saved_model.save(module, str(tmp_path / "m"), signatures=module.serve)
    run_program(LOAD + RETURNS, tmp_path / "m")


def test_with_plugins_the_whole_package_is_imported_because_it_loads_them(tmp_path: Path) -> None:
    save_half_plus_two(tmp_path / "m")
    (tmp_path / "tensorflow-plugins").mkdir()
    run_program(LOAD + PLUGINS, tmp_path)


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


def microfrontend(audio: tf.Tensor) -> dict[str, tf.Tensor]:
    """Compute features of sound with the operation that only TensorFlow's Python package has."""
    return {"features": gen_audio_microfrontend_op.audio_microfrontend(audio)}


def run_program(program: str, *arguments: Path) -> "subprocess.CompletedProcess[str]":
    """Run it in a new interpreter. It must print nothing to standard output."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, ""), run.stderr
    return run
