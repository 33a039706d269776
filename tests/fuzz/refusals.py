"""Rules for the errors of the server's request parsers."""

from tests.fuzz.target import expect
from tpuserve_server.core.terms.errors import Code, ServingError

# Codes for a request that the client must change. Any other code blames the server.
_OF_CLIENTS = frozenset((Code.INVALID_ARGUMENT, Code.UNIMPLEMENTED, Code.RESOURCE_EXHAUSTED))


def check_refusal(error: ServingError, *more: Code) -> None:
    """Check that an error blames the client, and that its message shows no internals."""
    expect(error.code in _OF_CLIENTS or error.code in more, f"{error.code.name} for a request: {error.message}")
    expect("Traceback" not in error.message and ".py" not in error.message, f"internals shown: {error.message}")
