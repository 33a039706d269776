"""Conversion of PJRT's errors to a canonical code and one line without internal details."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import jax

from tpuserve_server.core.terms.errors import Code, Internal, ResourceExhausted, ServingError, error_for_code

# XLA's messages begin with the code's name.
_CODED = re.compile(r"([A-Z_]+): (.*)", re.DOTALL)


@contextmanager
def device_errors(action: str) -> Iterator[None]:
    """Raise XLA's errors as ServingError: `{action} failed: …`."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        raise _served(action, str(error)) from error


def _served(action: str, message: str) -> ServingError:
    coded = _CODED.match(message)
    code = Code.__members__.get(coded[1]) if coded else None
    if coded is None or code is None:
        return Internal(f"{action} failed: {_first_line(message)}")
    if code is Code.RESOURCE_EXHAUSTED:
        return ResourceExhausted(f"{action} failed, the device is out of memory: {_first_line(coded[2])}")
    return error_for_code(code, f"{action} failed: {_first_line(coded[2])}")


def _first_line(message: str) -> str:
    return message.strip().split("\n", 1)[0].strip()
