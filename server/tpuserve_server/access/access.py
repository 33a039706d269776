"""Access: what a method or a route needs of its client, and Identity: a client with its roles and its models.

Each method and route declares its access where it is declared itself.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from tpuserve_server.core.terms.errors import PermissionDenied, Unauthenticated


class Role(enum.Enum):
    """A permission. None includes another one. The value is its name in flags, files and tokens."""

    # Inference, and the metadata and the readiness of a model.
    PREDICT = "predict"
    # Metadata, status, metrics, statistics and the console.
    READ = "read"
    # Reloads, loads and unloads, profiles, settings and shared memory.
    CONTROL = "control"


# A dictionary, because Python 3.11 takes 0.5 us to find a member of an enumeration by its value.
ROLES: Final[Mapping[str, Role]] = {role.value: role for role in Role}
ROLE_NAMES: Final = tuple(ROLES)


def parse_roles(text: str) -> frozenset[Role]:
    """Return the roles that a text names, separated by commas.

    Raises:
        ValueError: a name is unknown, or there is none.
    """
    names = text.split(",")
    if not ROLES.keys() >= set(names):
        # The word may be a key in the wrong place, which must not appear in a log.
        raise ValueError(f"unknown role, expected some of {', '.join(ROLE_NAMES)}")
    return frozenset(map(Role, names))


def describe_roles(roles: Iterable[Role]) -> str:
    """Return the names of roles for a message, in the order of Role."""
    wanted = frozenset(roles)
    return " and ".join(role.value for role in Role if role in wanted)


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


_WILDCARDS: Final = frozenset("*?[")
_MOST_SHOWN: Final = 100


class ModelNames:
    """Names and patterns of models. Patterns have the wildcards of `fnmatch`, and case counts."""

    __slots__ = ("_names", "_patterns")

    def __init__(self, names: Iterable[str]) -> None:
        """Contain the models that `names` name or match."""
        listed = tuple(names)
        self._names = frozenset(listed)
        self._patterns = tuple(name for name in listed if not _WILDCARDS.isdisjoint(name))

    def __contains__(self, model: str) -> bool:
        return model in self._names or any(fnmatchcase(model, pattern) for pattern in self._patterns)


@dataclass(frozen=True, slots=True)
class Identity:
    """A client. `name` appears in the access log and in messages to this client; empty: the client is anonymous.

    `models` are the models that it may use. None: all.
    """

    name: str
    roles: frozenset[Role]
    models: ModelNames | None = None

    def allows(self, model: str) -> bool:
        """Return whether the client may use a model."""
        return self.models is None or model in self.models

    def may(self, access: Access) -> bool:
        """Return whether the client may send a request that needs `access`."""
        roles = access.roles
        if roles is None:
            return True
        return not self.roles.isdisjoint(roles) and not (access.of_server and self.models is not None)

    def require(self, access: Access, what: str) -> None:
        """Check that the client may send a request. `what` names it in the message.

        Raises:
            Unauthenticated: the client is anonymous and lacks the role.
            PermissionDenied: the client lacks the role, or may use only some models.
        """
        if self.may(access):
            return
        needed = describe_roles(access.roles or ()).replace(" and ", " or ")
        if not self.name:
            raise Unauthenticated(f"{what} needs a credential with the role {needed}")
        if self.roles.isdisjoint(access.roles or ()):
            raise PermissionDenied(f"The client '{self.name}' has {self._roles()}, but {what} needs the role {needed}")
        raise PermissionDenied(f"The client '{self.name}' may use only some models, but {what} concerns all of them")

    def _roles(self) -> str:
        if not self.roles:
            return "no role"
        return f"the role{'s' if len(self.roles) > 1 else ''} {describe_roles(self.roles)}"

    def require_model(self, model: str) -> None:
        """Check that the client may use a model, whether or not it exists. Raises PermissionDenied."""
        if not self.allows(model):
            raise PermissionDenied(f"The client '{self.name}' may not use the model '{model[:_MOST_SHOWN]}'")
