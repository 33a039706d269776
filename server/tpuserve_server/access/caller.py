"""The caller of the current request. The rule at the entrance sets it; later parts of the request read it.

A context variable, because the name of a model is known only after a message has been decoded, in parts that know no
identity. Tasks and worker threads that a request starts inherit it.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, TypeVar

from tpuserve_server.access.access import READ_SERVER, Identity

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")

_CALLER: Final[ContextVar[Identity | None]] = ContextVar("tpuserve_caller", default=None)
_NO_DETAILS: Final = "not ready or not alive; the reason needs a credential with the role read"


def set_caller(identity: Identity | None) -> None:
    """Set the caller of the current request. None: the server itself acts."""
    _CALLER.set(identity)


def find_caller() -> Identity | None:
    """Return the caller, or None outside a request and in a server without identities."""
    return _CALLER.get()


def caller_name() -> str:
    """Return the name of the caller, or "" for an anonymous one and without identities."""
    caller = _CALLER.get()
    return "" if caller is None else caller.name


def shown_reason(reason: str) -> str:
    """Return why the server is not ready, or a text without names of models if the caller may not read them."""
    caller = _CALLER.get()
    return reason if not reason or caller is None or caller.may(READ_SERVER) else _NO_DETAILS


def for_server(act: Callable[[_Argument], _Result]) -> Callable[[_Argument], _Result]:
    """Return `act` as a call of the server itself. A client needs no permission for the steps of an ensemble."""

    def act_for_server(argument: _Argument) -> _Result:
        token = _CALLER.set(None)
        try:
            return act(argument)
        finally:
            _CALLER.reset(token)

    return act_for_server


class CallerModels:
    """Implements core's ModelAccess for the caller of the current request."""

    def check(self, model: str) -> None:
        """Check that the caller may use a model. Raises PermissionDenied."""
        caller = _CALLER.get()
        if caller is not None and caller.models is not None:
            caller.require_model(model)

    def allows(self, model: str) -> bool:
        """Return whether the caller may use a model."""
        caller = _CALLER.get()
        return caller is None or caller.allows(model)
