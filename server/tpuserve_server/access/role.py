"""Role: what a client may do."""

import enum
from collections.abc import Iterable, Mapping
from typing import Final


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
