"""ReplicaRule: refuses requests that would change one replica alone, and loads the multiplexed model of a request."""

from collections.abc import Awaitable, Callable
from typing import Final

from tpuserve_server.access.caller import CallerModels
from tpuserve_server.core.terms.errors import Unimplemented
from tpuserve_server.protocols.guard import Attempt

# The only POST requests of the Open Inference Protocol that change nothing.
_READING: Final = ("/infer", "/repository/index")


class ReplicaRule:
    """The rule of every request to a replica. Runs on the replica's event loop, within the request's context of Ray."""

    def __init__(self, find_model_id: Callable[[], str], load: Callable[[str], Awaitable[object]]) -> None:
        """Load the model that `find_model_id` finds in Ray's context of the request; an empty id loads nothing."""
        self._find_model_id = find_model_id
        self._load = load

    async def check(self, attempt: Attempt) -> None:
        """Load the multiplexed model of the request.

        Raises:
            Unimplemented: the request would change this replica alone.
            PermissionDenied: the client may not use the multiplexed model.
            ServingError: the multiplexed model cannot be loaded.
        """
        if _changes_replica(attempt):
            raise Unimplemented(
                f"{attempt.path} would change one replica of Ray Serve alone. Change user_config of the deployment, or "
                "the model configuration file, for all replicas"
            )
        # A probe needs no credential, so it must not load or unload models.
        if attempt.access.roles is not None and (model_id := self._find_model_id()):
            # A refused client must not unload the models of others.
            CallerModels().check(model_id)
            await self._load(model_id)


def _changes_replica(attempt: Attempt) -> bool:
    if attempt.protocol == "grpc":
        return attempt.access.is_control
    path = attempt.path.lower().rstrip("/")
    return attempt.method == "POST" and path.startswith("/v2/") and not path.endswith(_READING)
