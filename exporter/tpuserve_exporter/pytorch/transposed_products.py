"""Products with a transposed matrix, `x @ weight.T`, as one operation. Every linear layer of torch computes them.

Without the fold, XLA on CPUs copies the transposed weights at each call with a single row. For layers of 4096 by 4096,
this is 16 times slower and takes twice the memory.
"""

from typing import Any

import torch

_TRANSPOSE = torch.ops.aten.permute.default


def fold_transposes(graph: Any) -> None:  # noqa: ANN401 - torch is untyped here
    """Let the graph's `mm` and `addmm` take the second matrix without its transpose."""
    folded = {torch.ops.aten.mm.default: (_mm, 1), torch.ops.aten.addmm.default: (_addmm, 2)}
    for node in graph.nodes:
        function, position = folded.get(node.target, (None, 0))
        if function is None or not _is_transpose(matrix := node.args[position]):
            continue
        node.target = function
        node.update_arg(position, matrix.args[0])
    graph.eliminate_dead_code()


def _is_transpose(node: Any) -> bool:  # noqa: ANN401 - a node of torch.fx
    return node.op == "call_function" and node.target is _TRANSPOSE and list(node.args[1]) == [1, 0]


def _mm(rows: Any, matrix: Any) -> Any:  # noqa: ANN401 - arrays or tracers of JAX, here and below
    """Multiply rows [n, k] by the transpose of matrix [m, k]. The result is [n, m]."""
    from jax import lax

    return lax.dot_general(rows, matrix, (((1,), (1,)), ((), ())))


def _addmm(bias: Any, rows: Any, matrix: Any, *, beta: float = 1, alpha: float = 1) -> Any:  # noqa: ANN401
    product = _mm(rows, matrix)
    return (bias if beta == 1 else beta * bias) + (product if alpha == 1 else alpha * product)
