import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.saved_models import save_mlp
from tpuserve_formats.messages.official import CallableOptions, ConfigProto
from tpuserve_server.core.terms.errors import InvalidArgument, NotFound
from tpuserve_server.core.terms.servable import VersionFiles
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.executors.tensorflow import TensorFlowOptions, c_api
from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor
from tpuserve_server.executors.tensorflow.saved_session import SavedSession
from tpuserve_server.executors.tensorflow.session_config import run_options, session_config

ZEROS = np.zeros((1, 64), np.float32)
MLP = CallableOptions(feed=["serving_default_x:0"], fetch=["StatefulPartitionedCall:0"])


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_mlp(tmp_path_factory.mktemp("mlp") / "1")


def open_session(path: Path) -> SavedSession:
    return SavedSession(path, ("serve",), session_config(TensorFlowOptions(), bfloat16=False))


def test_a_closed_session_refuses_and_closes_again(mlp: Path) -> None:
    session = open_session(mlp)
    run = session.make_callable(MLP)
    assert np.shape(run((ZEROS,))[0]) == (1, 10)
    session.close()
    with pytest.raises(TypeError, match="incompatible function arguments"):
        run((ZEROS,))
    session.close()


def test_the_meta_graph_is_handed_out_once(mlp: Path) -> None:
    session = open_session(mlp)
    assert len(session.take_meta_graph()) > 1000
    assert session.take_meta_graph() == b""
    session.close()


def test_errors_of_the_library_carry_its_code(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"Could not find SavedModel \.pb"):
        open_session(tmp_path)
    with pytest.raises(InvalidArgument), c_api.session_options(b"\xff"):
        raise AssertionError("no ConfigProto")


def test_no_object_of_the_graph_ever_exists_in_python(mlp: Path) -> None:
    def count() -> int:
        return sum(isinstance(each, (tf.Graph, tf.Operation)) for each in gc.get_objects())

    gc.collect()
    before = count()
    session = open_session(mlp)
    session.make_callable(MLP)((ZEROS,))
    assert count() == before
    session.close()


def test_what_was_frozen_stays_out_of_collections(mlp: Path) -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        servable = TensorFlowExecutor(TensorFlowOptions()).load(ServableId("m", 1), VersionFiles(mlp))
        servable.dispatch("serving_default", {"x": ZEROS}, ("y",)).result()
        servable.close()
        # Some objects may die, but a load that unfroze them would leave none.
        assert gc.get_freeze_count() > 0.9 * frozen
    finally:
        gc.unfreeze()
        gc.collect()
        gc.freeze()  # as tests/conftest.py does


LOAD_TWICE = """
import os, sys, time
from pathlib import Path
import numpy as np
from tpuserve_server.core.system.threads import run_in_background
from tpuserve_server.core.terms.servable import VersionFiles
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.executors.tensorflow import TensorFlowOptions
from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor

executor = TensorFlowExecutor(TensorFlowOptions(inter_op_parallelism=2))
for version in (1, 2):
    servable = executor.load(ServableId("m", version), VersionFiles(Path(sys.argv[1])))
    run = lambda: servable.dispatch("serving_default", {"x": np.zeros((4096, 64), np.float32)}, ("y",)).result()
    run_in_background(run, "warm-up")

def niceness(task):
    try:
        return {os.getpriority(os.PRIO_PROCESS, int(task))}
    except ProcessLookupError:
        return set()

# A thread that was joined may be in the kernel still, for a moment.
deadline_s = time.monotonic() + 30
found = {0, 1}
while len(found) > 1 and time.monotonic() < deadline_s:
    found = set().union(*map(niceness, os.listdir("/proc/self/task")))
    time.sleep(0.05)
print(found)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a niceness of their own on Linux alone")
def test_loading_leaves_no_thread_that_the_kernel_serves_last(mlp: Path) -> None:
    # A new process, in which the first load really is the first.
    command = [sys.executable, "-c", LOAD_TWICE, str(mlp)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == str({os.getpriority(os.PRIO_PROCESS, 0)})


def test_options_are_laid_over_the_operators_own_configuration() -> None:
    file = ConfigProto(inter_op_parallelism_threads=3, intra_op_parallelism_threads=5)
    config = session_config(TensorFlowOptions(intra_op_parallelism=2, session_config=file), bfloat16=False)
    assert (config.inter_op_parallelism_threads, config.intra_op_parallelism_threads) == (3, 2)
    assert dict(config.device_count) == {"GPU": 0}
    assert run_options(config).inter_op_thread_pool == 0
    assert file.intra_op_parallelism_threads == 5
    plain = session_config(TensorFlowOptions(), bfloat16=False)
    assert run_options(plain).inter_op_thread_pool == -1
    mixed = session_config(TensorFlowOptions(mixed_precision="bfloat16"), bfloat16=False)
    for config, expected in ((plain, 0), (mixed, 1), (session_config(TensorFlowOptions(), bfloat16=True), 1)):
        assert config.graph_options.rewrite_options.auto_mixed_precision_onednn_bfloat16 == expected
