"""Checks of shard rules against weights, and generated rules for weights that are too large for one device."""

import re
from collections.abc import Iterable, Mapping, Sequence

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.options.device_mesh import DeviceMesh, ShardRule, find_axes

# Smaller weights are replicated. Sharding would save little memory and add communication.
_CUT_FROM_BYTES = 2**20


def check_rules(rules: Sequence[ShardRule], shapes: Mapping[str, tuple[int, ...]], mesh: DeviceMesh) -> None:
    """Raise OptionConflict for a rule that matches no weight, or that does not divide a weight evenly."""
    for rule in rules:
        if not any(rule.pattern.search(name) for name in shapes):
            raise OptionConflict(f"--shard '{rule}' matches no weight. The weights are {_some(shapes)}")
    for name, shape in shapes.items():
        _check_weight(name, shape, find_axes(name, rules), mesh)


def _check_weight(name: str, shape: tuple[int, ...], axes: tuple[str | None, ...], mesh: DeviceMesh) -> None:
    if len(axes) > len(shape):
        raise OptionConflict(f"the --shard rule for {name} has {len(axes)} axes, but the shape is {list(shape)}")
    for size, axis in zip(shape, axes, strict=False):
        devices = 1 if axis is None else getattr(mesh, axis)
        if size % devices:
            raise OptionConflict(
                f"cannot split {name} of shape {list(shape)} along {axis}={devices}: {size} is not a multiple of "
                f"{devices}"
            )


def make_rules(weights: Mapping[str, tuple[tuple[int, ...], int]], model: int) -> tuple[ShardRule, ...]:
    """Make rules that shard every large weight along its longest dimension that `model` divides.

    `weights` has the shape and the bytes of each weight. Weights whose names differ only in numbers share a rule.
    """
    rules: dict[str, ShardRule] = {}
    for name, (shape, size_bytes) in weights.items():
        axis = _longest(shape, model)
        if size_bytes < _CUT_FROM_BYTES or axis is None:
            continue
        axes = tuple("model" if one == axis else None for one in range(len(shape)))
        pattern = f"^{_any_number(name)}$"
        kept = rules.setdefault(pattern, ShardRule(re.compile(pattern), axes))
        if kept.axes != axes:  # needs other axes than weights with a similar name
            exact = f"^{re.escape(name)}$"
            rules = {exact: ShardRule(re.compile(exact), axes), **rules}
    return tuple(rules.values())


def _longest(shape: tuple[int, ...], model: int) -> int | None:
    fitting = [(size, -axis) for axis, size in enumerate(shape) if size % model == 0]
    return -max(fitting)[1] if fitting else None


def _any_number(name: str) -> str:
    """Return a pattern that matches any numbers in the name: `block_12/kernel` becomes `block_\\d+/kernel`."""
    return re.sub(r"\d+", r"\\d+", re.sub(r"[.^$*+?{}\[\]\\|()]", lambda one: "\\" + one[0], name))


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
