"""ModelLoad: the wait until an explicit load of one model has ended. The messages are Triton's."""

from typing import Final

from tpuserve_server.core.errors import Code, DeadlineExceeded, Internal, InvalidArgument
from tpuserve_server.core.registry import ModelRegistry
from tpuserve_server.core.types import VersionStatus

# Triton's names of codes (core/src/status.cc, Status::CodeString), where they differ from gRPC's.
_CODE_NAMES: Final = {
    Code.INVALID_ARGUMENT: "Invalid argument",
    Code.NOT_FOUND: "Not found",
    Code.UNIMPLEMENTED: "Unsupported",
    Code.ALREADY_EXISTS: "Already exists",
}


class ModelLoad:
    """The pending load of a configured model. It continues whether or not a caller waits."""

    def __init__(self, registry: ModelRegistry, name: str) -> None:
        """Read the model's state from `registry`."""
        self._registry = registry
        self._name = name

    def is_settled(self) -> bool:
        """Return whether every version that the model's policy chooses is available.

        Raises:
            Internal: the model has no version to load.
            InvalidArgument: the load of a version failed. The server may retry it.
            Unavailable: the server is shutting down, or a later change removed the model.
        """
        progress = self._registry.progress(self._name)
        if progress.absent:
            raise Internal(f"failed to load '{self._name}', failed to poll from model repository: {progress.absent}")
        if progress.failed:
            reasons = " ".join(_describe(status) for status in progress.failed)
            raise InvalidArgument(f"load failed for model '{self._name}': {reasons}")
        return progress.serves

    def too_late(self) -> DeadlineExceeded:
        """Return the error for a caller whose deadline has passed."""
        return DeadlineExceeded(
            f"failed to load '{self._name}' before the deadline: {self._registry.describe(self._name)}. The server "
            "continues to load it"
        )


def describe_error(status: VersionStatus) -> str:
    """Return why a version failed, such as `Internal: …`, or why its load waits, or ""."""
    if not status.error:
        return status.waits
    code = Code(status.error_code)
    return f"{_CODE_NAMES.get(code) or code.name.capitalize().replace('_', ' ')}: {status.error}"


def _describe(status: VersionStatus) -> str:
    return f"version {status.servable.version} is at UNAVAILABLE state: {describe_error(status)};"
