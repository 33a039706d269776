"""Light client of tpuserve and TensorFlow Serving: numpy in, numpy out, no tensorflow.

Example::

    from tpuserve_client import Client

    with Client("localhost:8500") as client:
        probabilities = client.predict("digits", {"image": images})["probabilities"]
"""

from typing import TYPE_CHECKING

from tpuserve_client.attempts import Attempt
from tpuserve_client.client import Client
from tpuserve_client.credentials import KeyFile
from tpuserve_client.errors import (
    Aborted,
    AlreadyExists,
    Cancelled,
    Code,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
    TpuserveError,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    Unknown,
)
from tpuserve_client.limits import Pool
from tpuserve_client.model import Metadata, Prediction, ScoredClass, Signature, State, TensorSpec, VersionStatus
from tpuserve_client.retry import Retry
from tpuserve_client.tls import Tls

if TYPE_CHECKING:
    from tpuserve_client.async_client import AsyncClient

__version__ = "0.1.0"

__all__ = [
    "Client",
    "AsyncClient",
    "Retry",
    "Pool",
    "Tls",
    "KeyFile",
    "Prediction",
    "ScoredClass",
    "Metadata",
    "Signature",
    "TensorSpec",
    "VersionStatus",
    "State",
    "Attempt",
    "TpuserveError",
    "Code",
    "Aborted",
    "AlreadyExists",
    "Cancelled",
    "DataLoss",
    "DeadlineExceeded",
    "FailedPrecondition",
    "Internal",
    "InvalidArgument",
    "NotFound",
    "OutOfRange",
    "PermissionDenied",
    "ResourceExhausted",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "Unknown",
]


if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> object:
        """Import `AsyncClient` at its first use: asyncio takes a quarter of this package's import time."""
        if name != "AsyncClient":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from tpuserve_client.async_client import AsyncClient

        globals()[name] = AsyncClient
        return AsyncClient


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
