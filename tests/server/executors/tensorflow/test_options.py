"""Tests for the threads of TensorFlow's sessions, as one setting or as two."""

from tpuserve_server.executors.tensorflow import TensorFlowOptions


def test_session_parallelism_stands_for_both_kinds_of_threads() -> None:
    both = TensorFlowOptions(session_parallelism=3)
    assert (both.intra_op_threads, both.inter_op_threads) == (3, 3)
    apart = TensorFlowOptions(intra_op_parallelism=2, inter_op_parallelism=5)
    assert (apart.intra_op_threads, apart.inter_op_threads) == (2, 5)
