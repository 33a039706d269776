"""Identity: a client that the server knows, with its roles and its models."""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from tpuserve_server.access.access import Access
from tpuserve_server.access.role import Role, describe_roles
from tpuserve_server.core.terms.errors import PermissionDenied, Unauthenticated

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
