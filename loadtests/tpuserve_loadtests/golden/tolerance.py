"""Limits for the difference between a response and its golden answer, from options, manifests and dtypes."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from tpuserve_client.dtypes import DType
from tpuserve_client.exchange import Exchange, Reply
from tpuserve_client.model import ModelSpec
from tpuserve_formats.manifest import MANIFEST_FILE
from tpuserve_loadtests.golden.version_metadata import fetch_field
from tpuserve_loadtests.requests.protocols import Protocol

# The exporter's defaults. Programs for other batch sizes round differently, by a few units in the last place.
_COARSE: Final = {"bfloat16": (2e-2, 2e-2), "float16": (2.5e-3, 2.5e-3)}
_FINE: Final = (1e-5, 1e-4)
_CHANGE: Final = "change with --atol/--rtol"


@dataclass(frozen=True, slots=True)
class Precision:
    """The tolerance of a version's export. `origin` names the manifest in messages, and is empty without a manifest."""

    compute_dtype: str
    atol: float
    rtol: float
    origin: str = ""

    def __str__(self) -> str:
        origin = f"from {self.origin}" if self.origin else "without a manifest"
        return f"{self.compute_dtype}, {origin}"


# Covers the rounding of TF32 and bfloat16 in another batch, on a server that does not report its precision.
ANY_PRECISION: Final = Precision("any precision", 2.5e-3, 2e-2)


@dataclass(frozen=True, slots=True)
class Allowed:
    """A permitted difference of `atol + rtol * |golden|`. `reason` names the dtype or the options that set it."""

    atol: float
    rtol: float
    reason: str

    def __str__(self) -> str:
        return f"{self.atol:g} + {self.rtol:g} * |golden| ({self.reason})"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The limit for float outputs.

    The options' values, `atol` and `rtol`, take precedence. For None, the widest value of `versions` applies.
    `versions` are the served versions and the versions of golden answers. A None in `versions` stands for a version
    without a known manifest, whose limit follows from the dtype of its outputs. The same limit applies if `versions` is
    empty.
    """

    atol: float | None = None
    rtol: float | None = None
    versions: tuple[Precision | None, ...] = ()

    @property
    def is_fixed(self) -> bool:
        """Whether the options set both limits."""
        return self.atol is not None and self.rtol is not None

    @lru_cache(maxsize=64)  # noqa: B019  a process has few tolerances
    def of(self, dtype: DType) -> Allowed:
        """Return the limit for outputs of a dtype."""
        of_outputs = Precision(dtype.name, *_COARSE.get(dtype.name, _FINE))
        found = [each or of_outputs for each in self.versions or (None,)]
        # For equal limits, the reason names the reduced precision.
        widest = max(found, key=lambda each: (each.atol, each.rtol, each.compute_dtype != "float32"))
        atol = widest.atol if self.atol is None else self.atol
        rtol = max(each.rtol for each in found) if self.rtol is None else self.rtol
        return Allowed(atol, rtol, self._reason(widest))

    def _reason(self, widest: Precision) -> str:
        if self.is_fixed:
            return "set with --atol and --rtol"
        if self.atol is not None:
            return f"--atol as set, --rtol of {widest}"
        return f"{widest}; {_CHANGE}" if self.rtol is None else f"--rtol as set, --atol of {widest}"


# A metadata field of tpuserve. Other servers reject it (gRPC) or ignore it (REST).
_FIELD: Final = "tpuserve_precision"


def read_precision(version: Path) -> Precision | None:
    """Read the precision from a version directory's manifest. Return None without a readable manifest."""
    try:
        manifest = json.loads((version / MANIFEST_FILE).read_bytes())
        return _precision({"compute_dtype": manifest["compute_dtype"], **manifest["parity"]}, f"{version}'s manifest")
    except (OSError, ValueError, KeyError, TypeError):
        return None


def fetch_precision(send: Callable[[Exchange], Reply], protocol: Protocol, spec: ModelSpec) -> Precision | None:
    """Fetch a version's precision from a server. Return None for other servers than tpuserve, and without a manifest.

    Blocks.
    """
    found = fetch_field(send, protocol, spec, _FIELD)
    try:
        return None if found is None else _precision(found.fields, _origin(spec.name, found.version))
    except (ValueError, KeyError, TypeError):
        return None


def _precision(fields: Mapping[str, Any], origin: str) -> Precision:
    return Precision(str(fields["compute_dtype"]), float(fields["atol"]), float(fields["rtol"]), origin)


def _origin(model: str, version: int | str) -> str:
    return f"{model} version {version}'s manifest"
