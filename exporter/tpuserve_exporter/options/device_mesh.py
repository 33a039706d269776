"""The sharding of a version over the devices of a TPU: a mesh, and rules that shard weights over its axes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.options.tpu_topology import TpuTopology
from tpuserve_formats.errors import FormatError
from tpuserve_formats.mesh_shape import AXES, MeshShape

# A dimension in --shard that is not sharded.
_WHOLE = ("", "-")


@dataclass(frozen=True, slots=True)
class DeviceMesh(MeshShape):
    """A grid of `data` x `model` devices. Batches are sharded over `data`, and weights over `model`."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `data=2,model=4`; an omitted axis has one device. Raises OptionConflict."""
        try:
            shape = MeshShape.parse(text)
        except FormatError:
            raise OptionConflict(f"{text!r} is not of the form data=N,model=M, data=N or model=M") from None
        return cls(shape.data, shape.model)

    def __str__(self) -> str:
        """Return the mesh as --mesh takes it: `model=4`."""
        return ",".join(f"{axis}={getattr(self, axis)}" for axis in AXES if getattr(self, axis) > 1) or "data=1"

    def check(self, topology: TpuTopology) -> None:
        """Raise OptionConflict if the mesh has more devices than the topology."""
        if self.devices <= topology.devices:
            return
        larger = next((one.name for one in topology.larger() if one.devices >= self.devices), None)
        there = f"{topology.name} has {topology.devices}"
        raise OptionConflict(
            f"--mesh {self} needs {self.devices} devices, but {there}{f'. Use {larger}' if larger else ''}"
        )


@dataclass(frozen=True, slots=True)
class ShardRule:
    """The sharding of weights with names that `pattern` matches. `axes` has a mesh axis or None for each dimension."""

    pattern: re.Pattern[str]
    axes: tuple[str | None, ...]

    @classmethod
    def parse(cls, text: str) -> "ShardRule":
        """Parse `embedding/.*=model,-`. The last `=` separates the pattern from an axis or `-` for each dimension.

        Raises OptionConflict.
        """
        regex, equals, listed = text.rpartition("=")
        axes = tuple(None if part.strip() in _WHOLE else part.strip() for part in listed.split(","))
        named = [axis for axis in axes if axis is not None]
        if not regex or not equals or not named or set(named) - set(AXES) or len(set(named)) < len(named):
            raise OptionConflict(
                f"{text!r} is not of the form REGEX=AXES, such as 'embedding/.*=model,-'. Each dimension has data, "
                "model, or - if it is not split, and each axis occurs at most once"
            )
        try:
            return cls(re.compile(regex), axes)
        except re.error as error:
            raise OptionConflict(f"{text!r} is not a regular expression: {error}") from error

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> "ShardRule":
        """Read a rule from a manifest."""
        return cls(re.compile(written["pattern"]), tuple(written["axes"]))

    def check(self, mesh: DeviceMesh) -> None:
        """Raise OptionConflict if `mesh` has only one device along each axis of the rule."""
        named = [axis for axis in self.axes if axis is not None]
        if all(getattr(mesh, axis) == 1 for axis in named):
            raise OptionConflict(
                f"--shard '{self}' splits nothing over --mesh {mesh}. Use more than one device for {named[0]}, such "
                f"as --mesh {named[0]}=4"
            )

    def to_json(self) -> dict[str, Any]:
        return {"pattern": self.pattern.pattern, "axes": list(self.axes)}

    def __str__(self) -> str:
        return f"{self.pattern.pattern}={','.join(axis or '-' for axis in self.axes)}"


def find_axes(weight: str, rules: Sequence[ShardRule]) -> tuple[str | None, ...]:
    """Return the axes of the first rule that matches the name, or () if the weight is replicated."""
    return next((rule.axes for rule in rules if rule.pattern.search(weight)), ())
