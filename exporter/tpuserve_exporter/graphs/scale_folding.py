"""Folds scales after convolutions and products, such as those of batch norms, into the kernels before them.

    y = (x * K + b - mean) * gamma / sqrt(variance + epsilon) + beta  =  x * (K * scale) + shift

A scale per output channel of the kernel is folded if only shifts and reshapes come between.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tpuserve_exporter.graphs.weight_values import WeightValues, count_uses
from tpuserve_exporter.terms.signature import Array

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef

# Axis of the kernel's output channels. A depthwise kernel has them on two axes.
_KERNEL_AXIS = {"Conv2D": 3, "Conv3D": 4, "Conv2DBackpropInput": 2, "Conv3DBackpropInputV2": 3, "MatMul": 1}
_DEPTHWISE = "DepthwiseConv2dNative"
_NORMS = frozenset({"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"})
_FORMS = frozenset({"Cast", "Squeeze", "Reshape", "Identity", "ExpandDims"})
_ADDS = frozenset({"Add", "AddV2", "BiasAdd"})


@dataclass(slots=True)
class Affine:
    """`scale * y + shift` in float64. Each is a number, or an array with one number for each channel."""

    scale: Array = field(default_factory=lambda: np.ones(1))
    shift: Array = field(default_factory=lambda: np.zeros(1))

    def multiply(self, by: Array) -> None:
        self.scale, self.shift = self.scale * by, self.shift * by

    def add(self, value: Array) -> None:
        self.shift = self.shift + value

    @property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.scale).all() and np.isfinite(self.shift).all())


@dataclass(frozen=True, slots=True)
class Scaled:
    """A product with a kernel, `linear`, and the `steps` after it. The last step gives the result."""

    linear: "NodeDef"
    steps: "Sequence[NodeDef]"
    channels: int
    channels_first: bool

    @property
    def kernel(self) -> str:
        return str(self.linear.input[1])

    @property
    def last(self) -> "NodeDef":
        return self.steps[-1]

    def known(self) -> Iterator[str]:
        """Yield the scales, shifts and statistics of the steps."""
        tensor = self.linear.name
        for node in self.steps:
            if node.op in _NORMS:
                yield from node.input[1:5]
            elif node.op not in _FORMS:
                yield node.input[1 if node.input[0] == tensor else 0]
            tensor = node.name


@dataclass(frozen=True, slots=True)
class Folding:
    """The new kernel of a scaled product, and the shift after it (one value per channel), or None."""

    scaled: Scaled
    kernel: Array
    shift: Array | None


class ScaleFolder:
    """Finds the products of one graph that scales can be folded into."""

    def __init__(self, values: WeightValues, fetches: Sequence[str]) -> None:
        self._values = values
        self._uses = count_uses(values.nodes)
        self._fetched = {*fetches}

    def fold(self) -> Iterator[Folding]:
        """Yield the foldings one by one, because each holds a kernel. Read the whole graph before the first one."""
        products = [node for node in self._values.order if node.op in _KERNEL_AXIS or node.op == _DEPTHWISE]
        found = {one.kernel: one for node in products if (one := self._find(node)) is not None}
        vectors = {
            name: value.astype(np.float64).reshape(-1)
            for name, value in self._values.compute(name for one in found.values() for name in one.known())
        }
        affines = {name: _affine(one, vectors) for name, one in found.items()}
        finite = [name for name, affine in affines.items() if affine.is_finite]
        for name, kernel in self._values.compute(finite):
            one, affine = found[name], affines[name]
            shift = np.broadcast_to(affine.shift, (one.channels,)) if np.any(affine.shift) else None
            yield Folding(one, _scale_kernel(one.linear, kernel, affine.scale), shift)

    def _find(self, linear: "NodeDef") -> Scaled | None:
        """Return the product with its steps, or None if no scale follows it or another product uses the same kernel."""
        kernel = linear.input[1]
        shape = self._values.shape(kernel)
        if len(self._uses[kernel]) > 1:
            return None
        if not self._values.follows(kernel) or self._values.follows(linear.input[0]) or shape is None:
            return None
        first = _is_channels_first(linear)
        channels = self._channels(linear, shape)
        steps = self._steps(linear, channels, first)
        if not any(node.op in _NORMS or node.op in ("Mul", "RealDiv") for node in steps):
            return None
        while steps[-1].op in _FORMS:
            steps.pop()
        return Scaled(linear, steps, channels, first)

    def _channels(self, linear: "NodeDef", shape: Sequence[int | None]) -> int:
        if linear.op == _DEPTHWISE:
            return int(shape[2] or 0) * int(shape[3] or 0)
        return int(shape[_axis(linear)] or 0)

    def _steps(self, linear: "NodeDef", channels: int, first: bool) -> "list[NodeDef]":
        """Return the reshapes and per-channel arithmetic after the product. Only the next step may use each."""
        steps, tensor = list["NodeDef"](), linear.name
        while tensor not in self._fetched and len(self._uses.get(tensor, ())) == 1:
            node, index = self._uses[tensor][0]
            if not (
                self._keeps_channels(node, index, channels, first) or self._is_by_channel(node, index, channels, first)
            ):
                break
            steps.append(node)
            tensor = node.name
        return steps

    def _keeps_channels(self, node: "NodeDef", index: int, channels: int, first: bool) -> bool:
        if node.op not in _FORMS or index != 0:
            return False
        before, after = self._values.tensor(node.input[0]), self._values.tensor(node.name)
        if node.op == "Cast":
            return bool(before.dtype.is_floating and after.dtype.is_floating)
        shapes = [tensor.shape for tensor in (before, after)]
        return node.op == "Identity" or (not first and all(one.rank and one[-1] == channels for one in shapes))

    def _is_by_channel(self, node: "NodeDef", index: int, channels: int, first: bool) -> bool:
        values = self._values
        if node.op in _NORMS:
            outputs = [f"{node.name}:{number}" for number in range(1, 6)]
            unused = not any(name in self._uses or name in self._fetched for name in outputs)
            same = _is_channels_first(node) == first
            known = all(map(values.is_known, node.input[1:5]))
            return index == 0 and known and unused and same and not _is_training(node)
        if node.op == "BiasAdd":
            same = _is_channels_first(node) == first
            return index == 0 and same and values.is_known(node.input[1])
        if node.op not in ("Mul", "Sub", "RealDiv", *_ADDS) or (node.op == "RealDiv" and index != 0):
            return False
        return values.is_known(node.input[1 - index]) and self._meets_channels(node, index, channels, first)

    def _meets_channels(self, node: "NodeDef", index: int, channels: int, first: bool) -> bool:
        """Return whether the other operand has a number for each channel, or one for all."""
        rank, other = self._values.tensor(node.input[index]).shape.rank, self._values.shape(node.input[1 - index])
        if not rank or other is None or len(other) > rank:
            return False
        axis, padded = 1 if first else rank - 1, [1] * (rank - len(other)) + other
        return padded[axis] in (1, channels) and all(size == 1 for at, size in enumerate(padded) if at != axis)


def _affine(scaled: Scaled, vectors: Mapping[str, Array]) -> Affine:
    """Return all steps as one scale and shift."""
    affine, tensor = Affine(), scaled.linear.name
    for node in scaled.steps:
        if node.op in _NORMS:
            gamma, beta, mean, variance = (vectors[name] for name in node.input[1:5])
            affine.add(-mean)
            affine.multiply(gamma / np.sqrt(variance + _epsilon(node)))
            affine.add(beta)
        elif node.op not in _FORMS:
            is_right = node.input[0] == tensor
            _apply(affine, node, vectors[node.input[1 if is_right else 0]], is_left=not is_right)
        tensor = node.name
    return affine


def _apply(affine: Affine, node: "NodeDef", value: Array, is_left: bool) -> None:
    if node.op == "Mul":
        affine.multiply(value)
    elif node.op == "RealDiv":
        affine.multiply(1.0 / value)
    elif node.op == "Sub" and is_left:
        affine.multiply(np.array([-1.0]))
        affine.add(value)
    else:
        affine.add(-value if node.op == "Sub" else value)


def _is_channels_first(node: "NodeDef") -> bool:
    """Return whether channels come first. Reading a missing attribute would create an empty one."""
    return "data_format" in node.attr and node.attr["data_format"].s.startswith(b"NC")


def _is_training(norm: "NodeDef") -> bool:
    return "is_training" not in norm.attr or norm.attr["is_training"].b


def _epsilon(norm: "NodeDef") -> float:
    return float(norm.attr["epsilon"].f) if "epsilon" in norm.attr else 1e-4


def _axis(linear: "NodeDef") -> int:
    if linear.op == "MatMul" and "transpose_b" in linear.attr and linear.attr["transpose_b"].b:
        return 0
    return _KERNEL_AXIS[linear.op]


def _scale_kernel(linear: "NodeDef", kernel: Array, scale: Array) -> Array:
    """Return the scaled kernel in its own dtype, computed in float32 or wider."""
    if len(scale) > 1 and linear.op == _DEPTHWISE:
        scale = scale.reshape(kernel.shape[2:])
    elif len(scale) > 1:
        scale = scale.reshape([-1 if axis == _axis(linear) else 1 for axis in range(kernel.ndim)])
    wide = np.promote_types(np.float32, kernel.dtype) if kernel.dtype.kind == "f" else np.dtype(np.float32)
    return (kernel.astype(wide) * scale.astype(wide)).astype(kernel.dtype)


def apply_folding(folding: Folding, kernel: str, shift: str | None) -> dict[str, str]:
    """Change the nodes. `kernel` and `shift` are placeholders with the new values. Return replaced tensors."""
    scaled = folding.scaled
    scaled.linear.input[1] = kernel
    before, renamed = scaled.linear.name, dict[str, str]()
    for node in scaled.steps:
        if node.op in _FORMS:
            node.input[0] = before
            before = node.name
        elif node is scaled.last and shift is not None:
            _become_shift(node, before, shift, scaled.channels_first)
        else:
            renamed[node.name] = before
    return renamed


def _become_shift(node: "NodeDef", tensor: str, shift: str, channels_first: bool) -> None:
    kind = node.attr["T"].type
    node.op = "BiasAdd"
    node.attr.clear()
    node.attr["T"].type = kind
    node.attr["data_format"].s = b"NCHW" if channels_first else b"NHWC"
    del node.input[:]
    node.input.extend([tensor, shift])
