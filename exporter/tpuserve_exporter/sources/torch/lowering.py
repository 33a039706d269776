"""Lowering of torch.export programs to JAX functions, with torchax's JAX implementation of each ATen operation."""

import contextlib
import importlib
import importlib.metadata
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from tpuserve_exporter.errors import CannotLower, reason_of
from tpuserve_exporter.models.frameworks import compute_on_cpu
from tpuserve_exporter.options.export_options import ComputeDtype
from tpuserve_exporter.sources.torch.tensors import to_numpy

# Only this tested release needs the workaround below.
_NEEDS_HELP = "0.0.13"
# torch now registers these decompositions itself, and refuses a second registration.
_REGISTERED_TWICE = ("grid_sampler_3d",)


def start_torchax() -> None:
    """Import torchax and its modules that lower operations. The first call takes seconds.

    This function undoes what the import changes for the whole process. It turns off torch's fused attention, and makes
    JAX an accelerator of torch, which breaks torch.distributed.checkpoint and strict traces.
    """
    compute_on_cpu()
    fast_path = torch.backends.mha.get_fastpath_enabled()
    with _names_of_old() if importlib.metadata.version("torchax") == _NEEDS_HELP else contextlib.nullcontext():
        importlib.import_module("torchax.decompositions")
        importlib.import_module("torchax.ops.jaten")
    torch.backends.mha.set_fastpath_enabled(fast_path)
    device: Any = importlib.import_module("torchax.device_module")
    device.is_available = lambda: False


@contextlib.contextmanager
def _names_of_old() -> Iterator[None]:
    """Let torchax look up overloads that torch removed (`aten.prod.dim_Dimname`) and register its decompositions."""
    from torch._ops import OpOverloadPacket

    find = OpOverloadPacket.__getattr__

    def find_or_stand_in(packet: Any, name: str) -> Any:  # noqa: ANN401 - torch has no types here
        try:
            return find(packet, name)
        except AttributeError:
            if name.startswith("_"):
                raise
            return _Dropped(f"{packet}.{name}")

    OpOverloadPacket.__getattr__ = find_or_stand_in
    try:
        _forget_decompositions()
        yield
    finally:
        OpOverloadPacket.__getattr__ = find


class _Dropped:
    """A placeholder for a removed overload: a key in torchax's tables that no operation looks up."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


def _forget_decompositions() -> None:
    from torch._decomp import global_decomposition_table

    table = global_decomposition_table["post_autograd"]
    for operation in [one for one in table if any(name in str(one) for name in _REGISTERED_TWICE)]:
        del table[operation]


_SUM, _MEAN, _MAX = 0, 1, 2


def embedding_bag(
    weight: Any,  # noqa: ANN401 - arrays or tracers of JAX, here and below
    indices: Any,  # noqa: ANN401
    offsets: Any,  # noqa: ANN401
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Any = None,  # noqa: ANN401
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Any, None, None, None]:
    """Compute `aten._embedding_bag` for serving: bags of shape [bags, width], and None for training's outputs.

    torchax's implementation needs the values of `offsets`, which are unknown during lowering.

    `indices` [n] holds the indices of all bags in order, and `offsets` [bags] the start of each bag. The result ignores
    indices equal to `padding_idx`. An empty bag is zeros.
    """
    import jax.numpy as jnp

    if include_last_offset:
        offsets = offsets[:-1]
    bags, count = offsets.shape[0], indices.shape[0]
    bag_of = jnp.sum(jnp.arange(count)[:, None] >= offsets[None, :], axis=1) - 1
    counts = (indices != padding_idx) & (bag_of >= 0)
    rows = weight[indices]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    sizes = jnp.zeros(bags, jnp.int32).at[bag_of].add(counts.astype(jnp.int32))[:, None]
    if mode == _MAX:
        lowest = jnp.full((bags, weight.shape[1]), -jnp.inf, weight.dtype)
        largest = lowest.at[bag_of].max(jnp.where(counts[:, None], rows, -jnp.inf))
        return jnp.where(sizes > 0, largest, 0).astype(weight.dtype), None, None, None
    total = jnp.zeros((bags, weight.shape[1]), rows.dtype).at[bag_of].add(jnp.where(counts[:, None], rows, 0))
    return (total / jnp.maximum(sizes, 1).astype(total.dtype) if mode == _MEAN else total), None, None, None


def arange(start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype, **kwargs: Any) -> Any:  # noqa: ANN401 - sizes
    """Compute `aten.arange.start_step`, because jnp.arange takes no step with a free end. Ignores `kwargs` (device)."""
    import jax.numpy as jnp
    from torchax.ops.mappings import t2j_dtype

    start, end, step = (int(one) if isinstance(one, float) and one.is_integer() else one for one in (start, end, step))
    if any(isinstance(one, float) for one in (start, end, step)):
        return jnp.arange(start, end, step, dtype=t2j_dtype(dtype))
    count = -((start - end) // step)
    return (start + step * jnp.arange(count)).astype(t2j_dtype(dtype))


def topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Any, Any]:  # noqa: ANN401
    """Compute `aten.topk`. torchax negates for the smallest, which is wrong for NaN and for some integers.

    XLA computes the largest without a sort of all values.
    """
    import jax.numpy as jnp
    from jax import lax

    del sorted  # the order of the results is free without it
    if not x.ndim:
        return x, jnp.int32(0)
    axis = dim % x.ndim
    if largest:
        values, places = lax.top_k(x, k, axis=axis)
        return values, places
    values, places = lax.sort((x, lax.broadcasted_iota(jnp.int32, x.shape, axis)), dimension=axis, num_keys=1)
    return lax.slice_in_dim(values, 0, k, axis=axis), lax.slice_in_dim(places, 0, k, axis=axis)


def mean(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:  # noqa: ANN401
    """Compute `aten.mean.dim`. torchax's implementation takes no `dtype`, in which torch computes the mean."""
    import jax.numpy as jnp
    from torchax.ops.mappings import t2j_dtype

    return jnp.mean(
        x if dtype is None else x.astype(t2j_dtype(dtype)), axis=tuple(dim) if dim else None, keepdims=keepdim
    )


# Products with a transposed matrix, `x @ weight.T`, as one operation. Every linear layer of torch computes them.
#
# Without the fold, XLA on CPUs copies the transposed weights at each call with a single row. For layers of 4096 by
# 4096, this is 16 times slower and takes twice the memory.

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


# (parameters and buffers by name; inputs in order) → outputs in order. Arrays or tracers of JAX.
JaxProgram: TypeAlias = Callable[[Mapping[str, Any], Sequence[Any]], Sequence[Any]]

_OPERATIONS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
_OWN = {
    torch.ops.aten._embedding_bag.default: embedding_bag,
    torch.ops.aten._embedding_bag_forward_only.default: embedding_bag,
    torch.ops.aten.arange.start_step: arange,
    torch.ops.aten.mean.dim: mean,
    torch.ops.aten.topk.default: topk,
}
# Assertions by torch.export about sizes and values. The outputs do not depend on them.
_ASSERTIONS = ("_assert", "sym_constrain_range")
# Operations of torch's fused attention for inference, which torch.export(..., strict=True) writes into a program.
_FUSED_ATTENTION = re.compile("_transformer_encoder_layer_fwd|_native_multi_head_attention")
_STATE = (InputKind.PARAMETER, InputKind.BUFFER)


class LoweringFailed(NotImplementedError):
    """Raised if torchax fails to lower a supported operation for these shapes."""


def lower(program: ExportedProgram, compute_dtype: ComputeDtype = "keep") -> JaxProgram:
    """Lower a program to a JAX function. Raises CannotLower with every unsupported operation.

    Each operation's result has the dtype that torch computed in the trace. With another `compute_dtype` than "keep",
    the caller casts the arguments, and floating-point results keep the dtype of the arguments.
    """
    start_torchax()
    decomposed = _decompose(program)
    graph_module = decomposed.graph_module
    _drop_assertions(graph_module)
    _check_operations(graph_module.graph)
    name_dtypes(graph_module.graph)
    fold_transposes(graph_module.graph)
    graph_module.recompile()
    mutations = len(decomposed.graph_signature.buffers_to_mutate)
    interpreter = _JaxInterpreter(graph_module, compute_dtype == "keep")

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
    """Decompose a program into torch's core operations, and then into operations that torchax supports.

    Raises CannotLower.
    """
    from torchax.decompositions import DECOMPOSITIONS

    core = torch.export.default_decompositions()
    core[_VIEW] = _view
    try:
        # torch prints the graph of a decomposition that fails.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return program.run_decompositions(core).run_decompositions({**DECOMPOSITIONS, _VIEW: _view})
    except Exception as error:  # torch raises many kinds of errors
        raise CannotLower(f"torch cannot decompose the model's operations: {reason_of(error)}") from error


_VIEW = torch.ops.aten.view.default


def _view(tensor: torch.Tensor, size: Sequence[int]) -> Any:  # noqa: ANN401 - a tensor, or NotImplemented
    """Copy a tensor that is not contiguous before a view of it. The graph of JAX has no strides and no copy.

    A decomposed operation may give its result other strides than the operation itself, such as attention. A view that
    was possible then fails.
    """
    return NotImplemented if tensor.is_contiguous() else tensor.clone(memory_format=torch.contiguous_format).view(size)


class _JaxInterpreter(torch.fx.Interpreter):  # type: ignore[misc]  # torch is untyped here
    """Runs a graph with JAX. Each result has the dtype of the trace, because JAX promotes by other rules than torch.

    Without `exact`, a floating-point result may have another floating-point dtype than in the trace.
    """

    def __init__(self, graph_module: Any, exact: bool) -> None:  # noqa: ANN401 - torch has no types here
        super().__init__(graph_module)
        self._exact = exact

    def run_node(self, node: Any) -> Any:  # noqa: ANN401 - its own, here and below
        result = super().run_node(node)
        return self._cast(result, node.meta.get("val")) if node.op == "call_function" else result

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        if not isinstance(target, _OPERATIONS):
            return super().call_function(target, args, kwargs)
        try:
            return _find(target).func(*_plain(args), **_plain(kwargs))
        except Exception as error:  # JAX and torchax may raise anything
            raise LoweringFailed(f"{target}: {type(error).__name__}: {reason_of(error)}") from error

    def _cast(self, result: Any, traced: Any) -> Any:  # noqa: ANN401
        import jax
        from torchax.ops.mappings import t2j_dtype

        if isinstance(traced, tuple | list):
            return [self._cast(one, value) for one, value in zip(result, traced, strict=False)]
        if not torch.is_tensor(traced) or result is None:
            return result
        dtype = jax.dtypes.canonicalize_dtype(t2j_dtype(traced.dtype))
        is_free = (
            not self._exact
            and traced.dtype.is_floating_point
            and jax.numpy.issubdtype(result.dtype, jax.numpy.floating)
        )
        return result if is_free else result.astype(dtype)


def name_dtypes(graph: Any) -> None:  # noqa: ANN401 - torch is untyped here
    """Give operations that make a tensor from numbers alone the dtype of the trace, such as `arange` and `full`.

    Without a dtype, torch takes it from the numbers (`arange(3)` is int64) or its default, and torchax only from its
    default. A later cast would not restore large integers.
    """
    for node in graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload) or not torch.is_tensor(value := node.meta.get("val")):
            continue
        arguments = node.target._schema.arguments
        takes_tensors = any("Tensor" in str(one.type) for one in arguments)
        if not takes_tensors and any(one.name == "dtype" and one.kwarg_only for one in arguments):
            node.kwargs = {**node.kwargs, "dtype": value.dtype}


def _plain(value: Any) -> Any:  # noqa: ANN401 - arguments of a node
    """Return arguments with lists that torchax may change. Those of a graph are immutable."""
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return {key: _plain(one) for key, one in value.items()} if isinstance(value, dict) else value


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
        advice = (
            "Call torch.backends.mha.set_fastpath_enabled(False) before torch.export"
            if all(_FUSED_ATTENTION.search(name) for name in unknown)
            else "Use other operations in the model"
        )
        raise CannotLower(
            f"torchax has no JAX code for {', '.join(sorted(unknown))}, so that there is no program for a TPU. {advice}"
        )
    random = sorted(name for name, operator in found.items() if operator.needs_env)
    if random:
        raise CannotLower(
            f"the model draws random numbers ({', '.join(random)}), so that its answers differ each time. Remove "
            "dropout from the served model (module.eval() before torch.export, F.dropout(..., "
            "training=self.training))"
        )
