"""Finds operations with which equal requests may get different outputs. A response cache must not keep these outputs.

The search covers every signature: one may write a variable that another one reads. It does not cover a model's
initialisation and its saver, which write variables too. It errs on the safe side: TensorFlow marks operations with
state, and only those that are listed here may occur. Operations without the mark depend on their inputs alone.
"""

from collections.abc import Callable, Container, Iterable
from typing import Final, Protocol

from tpuserve_server.core.terms.types import Signature
from tpuserve_server.executors.tensorflow.run_graph import RunGraph

# Operations with state whose output changes only if another operation writes the state. No list has one that writes.
READS: Final = frozenset(
    {
        "VarHandleOp", "Variable", "VariableV2", "ReadVariableOp", "VarIsInitializedOp", "IsVariableInitialized",
        "VariableShape", "ResourceGather", "ResourceGatherNd", "HashTable", "HashTableV2", "AnonymousHashTable",
        "MutableHashTable", "MutableHashTableV2", "MutableDenseHashTable", "MutableDenseHashTableV2", "LookupTableFind",
        "LookupTableFindV2", "LookupTableSize", "LookupTableSizeV2",
    }
)  # fmt: skip
# Control flow and calls, whose functions are searched too, checks, and arrays that live for one run.
_CONTROL: Final = frozenset(
    {
        "StatefulPartitionedCall", "If", "While", "Case", "RefEnter", "RefExit", "RefIdentity", "RefMerge",
        "RefNextIteration", "RefSelect", "RefSwitch", "Assert", "Print", "PrintV2", "TensorArrayV3",
        "TensorArrayCloseV3", "TensorArrayConcatV3", "TensorArrayGatherV3", "TensorArrayReadV3", "TensorArrayScatterV3",
        "TensorArraySizeV3", "TensorArraySplitV3", "TensorArrayWriteV3",
    }
)  # fmt: skip
_ALLOWED: Final = READS | _CONTROL
# TensorFlow does not mark these, although they read files or run any Python code.
_UNMARKED: Final = frozenset({"MatchingFiles", "PyFuncStateless", "ReadFile"})


class _Argument(Protocol):
    @property
    def is_ref(self) -> bool: ...


class OpDef(Protocol):
    """The part of TensorFlow's OpDef that the search reads."""

    @property
    def is_stateful(self) -> bool:
        """Whether the operation's outputs depend on more than its inputs."""
        ...

    @property
    def input_arg(self) -> Iterable[_Argument]:
        """The inputs. An operation may write to an input that is a reference."""
        ...


def find_unrepeatable(graph: RunGraph, signatures: Iterable[Signature], find_op: Callable[[str], OpDef | None]) -> str:
    """Return why equal requests may get different outputs, or "".

    `find_op` returns the definition of a registered operation.
    """
    for signature in signatures:
        for node in graph.run_by(signature):
            if reason := _why_not(node.op, graph.functions, find_op):
                return f"signature '{signature.name}' {reason}"
    return ""


def _why_not(op: str, functions: Container[str], find_op: Callable[[str], OpDef | None]) -> str:
    if op in _ALLOWED or op in functions:
        return ""
    definition = find_op(op)
    if definition is None:
        return f"has the operation {op}, which this server's TensorFlow does not define"
    is_marked = definition.is_stateful or any(one.is_ref for one in definition.input_arg)
    return f"has the operation {op}, which has state or is random" if is_marked or op in _UNMARKED else ""
