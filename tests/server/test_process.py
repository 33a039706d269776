import gc
import subprocess
import sys

import pytest

from tpuserve_server.core.garbage import settle_garbage_collector

START = """
import sys
from tpuserve_server.executors.tensorflow_start import start_tensorflow
start_tensorflow()
import tensorflow
assert "keras" not in sys.modules and "optree" not in sys.modules
import keras
"""


@pytest.mark.timeout(90)
def test_tensorflow_starts_quietly_and_without_keras_which_can_be_imported_later() -> None:
    run = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "")
    assert "oneDNN custom operations are on" not in run.stderr.split("keras")[0]


@pytest.mark.timeout(90)
def test_what_fails_to_start_says_why() -> None:
    code = "import sys; sys.modules['tensorflow'] = None\n" + START
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "tensorflow" in run.stderr


def test_what_is_there_at_the_start_is_never_collected_again() -> None:
    thresholds = gc.get_threshold()
    try:
        settle_garbage_collector()
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[0] > thresholds[0]
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
