"""Lowering of torch.export programs to JAX functions, with torchax's JAX implementation of each ATen operation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from tpuserve_exporter.errors import CannotLower, reason_of
from tpuserve_exporter.pytorch.arrays import to_numpy
from tpuserve_exporter.pytorch.own_operations import arange, embedding_bag
from tpuserve_exporter.pytorch.torchax_start import start_torchax
from tpuserve_exporter.pytorch.transposed_products import fold_transposes

# (parameters and buffers by name; inputs in order) → outputs in order. Arrays or tracers of JAX.
JaxProgram: TypeAlias = Callable[[Mapping[str, Any], Sequence[Any]], Sequence[Any]]

_OPERATIONS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
_OWN = {
    torch.ops.aten._embedding_bag.default: embedding_bag,
    torch.ops.aten._embedding_bag_forward_only.default: embedding_bag,
    torch.ops.aten.arange.start_step: arange,
}
# Assertions by torch.export about sizes and values. The outputs do not depend on them.
_ASSERTIONS = ("_assert", "sym_constrain_range")
_STATE = (InputKind.PARAMETER, InputKind.BUFFER)


class LoweringFailed(NotImplementedError):
    """Raised if torchax fails to lower a supported operation for these shapes."""


def lower(program: ExportedProgram) -> JaxProgram:
    """Lower a program to a JAX function. Raises CannotLower with every unsupported operation."""
    start_torchax()
    decomposed = _decompose(program)
    graph_module = decomposed.graph_module
    _drop_assertions(graph_module)
    _check_operations(graph_module.graph)
    fold_transposes(graph_module.graph)
    graph_module.recompile()
    mutations = len(decomposed.graph_signature.buffers_to_mutate)
    interpreter = _JaxInterpreter(graph_module)

    def call(state: Mapping[str, Any], inputs: Sequence[Any]) -> Sequence[Any]:
        arguments = _arguments(decomposed, state, inputs)
        outputs: Sequence[Any] = interpreter.run(*arguments, enable_io_processing=False)
        return outputs[mutations:]

    return call


def state_names(program: ExportedProgram) -> list[str]:
    """Return the names of the parameters and buffers that the program reads."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    specs = program.graph_signature.input_specs
    return [spec.target for spec in specs if spec.kind in _STATE and nodes[spec.arg.name].users]


def _arguments(program: ExportedProgram, state: Mapping[str, Any], inputs: Sequence[Any]) -> list[Any]:
    """Return the graph's arguments in order. Constants become part of the lowered program."""
    remaining = iter(inputs)
    arguments: list[Any] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind in _STATE:
            # The state may omit an unused parameter or buffer.
            arguments.append(state.get(spec.target))
        elif spec.kind is InputKind.CONSTANT_TENSOR:
            arguments.append(_constant(program.constants[spec.target]))
        elif hasattr(spec.arg, "value"):  # not a tensor at export
            arguments.append(spec.arg.value)
        else:
            arguments.append(next(remaining))
    return arguments


def _constant(tensor: torch.Tensor) -> Any:  # noqa: ANN401 - an array of JAX
    import jax.numpy as jnp

    return jnp.asarray(to_numpy(tensor))


def _decompose(program: ExportedProgram) -> ExportedProgram:
    """Decompose a program into torch's core operations, and then into operations that torchax supports."""
    from torchax.decompositions import DECOMPOSITIONS

    return program.run_decompositions().run_decompositions(DECOMPOSITIONS)


class _JaxInterpreter(torch.fx.Interpreter):  # type: ignore[misc]  # torch is untyped here
    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - its own
        if not isinstance(target, _OPERATIONS):
            return super().call_function(target, args, kwargs)
        try:
            return _find(target).func(*args, **kwargs)
        except Exception as error:  # JAX and torchax may raise anything
            raise LoweringFailed(f"{target}: {type(error).__name__}: {reason_of(error)}") from error


def _find(target: Any) -> Any:  # noqa: ANN401 - torchax has no types
    from torchax.ops.ops_registry import Operator, all_aten_ops

    if target in _OWN:
        return Operator(target, _OWN[target], True, False, False, False)
    packet = getattr(target, "overloadpacket", target)
    return all_aten_ops.get(target) or all_aten_ops.get(packet)


def _drop_assertions(graph_module: Any) -> None:  # noqa: ANN401 - torch is untyped here
    graph = graph_module.graph
    for node in [node for node in graph.nodes if _operation_name(node).startswith(_ASSERTIONS)]:
        graph.erase_node(node)
    # Remove comparisons of sizes that only assertions used. JAX could not decide them for free sizes.
    graph.eliminate_dead_code()
    graph_module.recompile()


def _operation_name(node: Any) -> str:  # noqa: ANN401 - torch is untyped here
    """Return `_assert_scalar.default` for `aten._assert_scalar.default`, or an empty text if it is no operation."""
    return str(node.target).partition(".")[2] if isinstance(node.target, _OPERATIONS) else ""


def _check_operations(graph: Any) -> None:  # noqa: ANN401 - torch is untyped here
    calls = [node.target for node in graph.nodes if node.op == "call_function"]
    found = {str(target): _find(target) for target in calls if isinstance(target, _OPERATIONS)}
    unknown = {name for name, operator in found.items() if operator is None or not operator.is_jax_function}
    unknown |= {str(target) for target in calls if isinstance(target, torch._ops.HigherOrderOperator)}
    if unknown:
        raise CannotLower(
            f"torchax has no JAX code for {', '.join(sorted(unknown))}, so that there is no program for a TPU. Use "
            "other operations in the model"
        )
    random = sorted(name for name, operator in found.items() if operator.needs_env)
    if random:
        raise CannotLower(
            f"the model draws random numbers ({', '.join(random)}), so that its answers differ each time. Remove "
            "dropout from the served model (module.eval() before torch.export, F.dropout(..., "
            "training=self.training))"
        )
