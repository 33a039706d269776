"""Access: what a method or a route needs of its client. Each one declares it where it is declared itself."""

from dataclasses import dataclass
from typing import Final

from tpuserve_server.access.role import Role


@dataclass(frozen=True, slots=True)
class Access:
    """A client needs one of `roles`. None: every client may send the request.

    `of_server`: the request concerns all models, so a client that may use only some of them may not send it.
    """

    roles: frozenset[Role] | None
    of_server: bool = False

    @property
    def is_control(self) -> bool:
        """Whether only clients that control the server may send the request."""
        return self.roles == _CONTROL


_CONTROL: Final = frozenset((Role.CONTROL,))

# Probes, which have no credentials. Their answers name no model.
OPEN: Final = Access(None)
PREDICT: Final = Access(frozenset((Role.PREDICT,)))
# The readiness and the metadata of a model. Clients ask for both before they predict.
DESCRIBE: Final = Access(frozenset((Role.PREDICT, Role.READ)))
READ: Final = Access(frozenset((Role.READ,)))
READ_SERVER: Final = Access(frozenset((Role.READ,)), of_server=True)
CONTROL: Final = Access(_CONTROL)
CONTROL_SERVER: Final = Access(_CONTROL, of_server=True)
# Unknown paths and methods: clients without a role do not learn which ones exist.
ANY_ROLE: Final = Access(frozenset(Role))
