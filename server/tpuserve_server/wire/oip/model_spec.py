"""The model and the version that a request of the Open Inference Protocol names."""

import re
from typing import Final

from tpuserve_server.core.terms.errors import InvalidArgument, shown
from tpuserve_server.core.terms.types import ModelSpec

_DIGITS = re.compile(r"[0-9]+", re.ASCII)
_MAX_INT64: Final = (1 << 63) - 1
_MOST_SHOWN: Final = 32


def parse_model_spec(name: str, version: str, signature_name: str = "") -> ModelSpec:
    """Return the spec for a version as text. An empty version means the latest. Raises InvalidArgument."""
    return ModelSpec(shown(name), parse_version(version) if version else None, None, shown(signature_name))


def parse_version(text: str) -> int:
    """Return a version's number. Raises InvalidArgument with Triton's message (server, common.cc)."""
    # Python refuses to convert thousands of digits. An int64 has at most 19 without leading zeros.
    significant = text.lstrip("0") or "0"
    if _DIGITS.fullmatch(text) and len(significant) <= len(str(_MAX_INT64)) and int(significant) <= _MAX_INT64:
        return int(significant)
    raise InvalidArgument(
        f"failed to get model version from specified version string '{text[:_MOST_SHOWN]}', version should be an "
        "integral value > 0"
    )
