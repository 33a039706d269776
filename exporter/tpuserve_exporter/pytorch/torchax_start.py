"""The import of torchax with the installed torch. torchax 0.0.13 looks up names that torch 2.13 removed."""

import contextlib
import importlib
import importlib.metadata
from collections.abc import Iterator
from typing import Any

from tpuserve_exporter.models.jax_platform import compute_on_cpu

# Only this tested release needs the workaround below.
_NEEDS_HELP = "0.0.13"
# torch now registers these decompositions itself, and refuses a second registration.
_REGISTERED_TWICE = ("grid_sampler_3d",)


def start_torchax() -> None:
    """Import torchax and its modules that lower operations. The first call takes seconds."""
    compute_on_cpu()
    with _names_of_old() if importlib.metadata.version("torchax") == _NEEDS_HELP else contextlib.nullcontext():
        importlib.import_module("torchax.decompositions")
        importlib.import_module("torchax.ops.jaten")


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
