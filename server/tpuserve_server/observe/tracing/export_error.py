"""ExportError: why an OTLP receiver did not take a request."""


class ExportError(Exception):
    """The receiver did not take a request, or cannot be used. The message has the reason for the operator."""

    def __init__(self, reason: str, *, retry_after_s: float | None = None) -> None:
        """Allow a retry after `retry_after_s` seconds. None: a retry would fail, too."""
        super().__init__(reason)
        self.retry_after_s = retry_after_s


def reason_of(error: BaseException) -> str:
    """Return the operating system's words for an error, or the error's own."""
    if isinstance(error, TimeoutError):
        return "no response in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
