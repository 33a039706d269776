"""Finds operations because of which a run may wait or take any time. An event loop must not run these models.

Most operations only compute, for a time that the shapes of their inputs decide. The search errs on the safe side: of
the operations that TensorFlow marks because of their state, only reads of variables and tables may occur.
"""

from collections.abc import Callable, Container, Iterable
from typing import Final

from tpuserve_server.core.types import Signature
from tpuserve_server.executors.tensorflow.repeatability import ALLOWED_STATE, UNMARKED, OpDef
from tpuserve_server.executors.tensorflow.run_graph import RunGraph

# Loops, whose number of steps may depend on the inputs.
_LOOPS: Final = frozenset(
    {"While", "StatelessWhile", "For", "Enter", "NextIteration", "RefEnter", "RefNextIteration", "MapDefun"}
)
# Writes to standard error, and programs that TensorFlow compiles in their first run of a shape.
_WAITS: Final = frozenset({"Print", "PrintV2", "XlaCallModule", "XlaLaunch", "XlaLaunchV2"})


def may_block(graph: RunGraph, signatures: Iterable[Signature], find_op: Callable[[str], OpDef | None]) -> bool:
    """Return whether a run of a signature may wait, or take longer than others with the same shapes.

    `find_op` returns the definition of a registered operation.
    """
    nodes = (node for signature in signatures for node in graph.run_by(signature))
    return any(node.is_compiled or _may_block(node.op, graph.functions, find_op) for node in nodes)


def _may_block(op: str, functions: Container[str], find_op: Callable[[str], OpDef | None]) -> bool:
    if op in _LOOPS or op in _WAITS or op in UNMARKED:
        return True
    if op in ALLOWED_STATE or op in functions:
        return False
    definition = find_op(op)
    return definition is None or definition.is_stateful or any(one.is_ref for one in definition.input_arg)
