"""Waits on the event loop until a change of the models has settled, for a request with a deadline."""

import asyncio

from tpuserve_server.core.models.transition import ModelLoad, Transition
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.system.changes import wait_until
from tpuserve_server.core.terms.deadline import Clock, Deadline
from tpuserve_server.core.terms.errors import Unavailable


async def settle(change: Transition | ModelLoad, deadline: Deadline, service: InferenceService, clock: Clock) -> None:
    """Wait until `change` has settled. It continues whether or not a request waits for it.

    Raises:
        DeadlineExceeded: `deadline` is near.
        Unavailable: the server is shutting down.
        ServingError: the change has failed.
    """

    def is_settled() -> bool:
        if change.is_settled():
            return True
        if service.is_draining():
            # A drain waits for calls in flight, and must not wait for a load that may take minutes.
            raise Unavailable("The server is shutting down")
        return False

    try:
        async with asyncio.timeout(deadline.patience_s(clock.monotonic_s())):
            await wait_until(service.subscribe, is_settled)
    except TimeoutError:
        raise change.too_late() from None
