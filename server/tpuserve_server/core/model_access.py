"""ModelAccess: which models the client of the current request may use. The core knows neither clients nor requests."""

from typing import Protocol


class ModelAccess(Protocol):
    """Answers for the current request, on any thread. Work that no request started may use every model."""

    def check(self, model: str) -> None:
        """Check that the client may use a model, whether or not it exists. Raises PermissionDenied."""
        ...

    def allows(self, model: str) -> bool:
        """Return whether the client may use a model."""
        ...
