"""The replicas of a deployment: their addresses, and whether each one has a configuration and its labels."""

import itertools
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from tpuserve_client.errors import DeadlineExceeded, TpuserveError, Unavailable
from tpuserve_loadtests.rollout.model_service import ModelService

_DNS: Final = "dns:"
_SHOWN_DIGITS: Final = 12
_NO_ADDRESS: Final = "has no address"


@dataclass(frozen=True, slots=True)
class Place:
    """One address of a replica, or a DNS name whose addresses are all replicas, such as that of a headless service."""

    address: str
    is_dns: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `HOST:PORT` or `SCHEME://HOST:PORT`, with `dns:` before it for a name. Raises ValueError."""
        address = text.removeprefix(_DNS)
        place = cls(address, is_dns=address != text)
        if place.is_dns and not (place.name and place._parts[2].isdecimal()):
            raise ValueError(f"expected dns:NAME:PORT or dns:SCHEME://NAME:PORT; received {text!r}")
        return place

    @property
    def is_secure(self) -> bool:
        return self._parts[0] in ("grpcs://", "https://")

    @property
    def name(self) -> str:
        return self._parts[1]

    @property
    def _parts(self) -> tuple[str, str, str]:
        """The scheme with its slashes, the host and the port."""
        scheme, slashes, place = self.address.rpartition("://")
        host, _, port = place.rpartition(":")
        return scheme + slashes, host, port

    def addresses(self) -> list[str]:
        """Return the addresses of the replicas now: none for a DNS name without addresses. Blocks."""
        if not self.is_dns:
            return [self.address]
        scheme, name, port = self._parts
        try:
            found = socket.getaddrinfo(name, int(port), type=socket.SOCK_STREAM)
        except socket.gaierror:  # a headless service without ready pods has no addresses
            return []
        hosts = sorted({str(each[4][0]) for each in found})
        return [f"{scheme}[{host}]:{port}" if ":" in host else f"{scheme}{host}:{port}" for host in hosts]


@dataclass(frozen=True, slots=True)
class Goal:
    """What every replica must have: the hash of a configuration, and the versions of labels of a model."""

    model: str
    sha256: str
    labels: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What a replica has. `sha256` is empty if the server does not report the hash of its configuration.

    `problem` is the error of a replica that does not respond. `lacks` is empty if the replica has the goal.
    """

    address: str
    sha256: str = ""
    labels: Mapping[str, int | None] | None = None
    problem: str = ""
    lacks: str = ""

    @property
    def configuration(self) -> str:
        return self.sha256[:_SHOWN_DIGITS] or "unknown"

    @property
    def versions(self) -> str:
        return ", ".join(f"{label}: {version_text(at)}" for label, at in (self.labels or {}).items()) or "unknown"

    def __str__(self) -> str:
        return f"{self.address} {self.lacks or 'has the configuration'}"


@dataclass(frozen=True, slots=True)
class Look:
    """The states of all replicas at one time, compared with a goal."""

    states: tuple[ReplicaState, ...]
    allow_missing: int = 0

    @property
    def agrees(self) -> bool:
        """Whether all replicas have the goal, except for those that may be missing. At least one must have it."""
        gone = sum(bool(state.problem) for state in self.states)
        others = [state for state in self.states if not state.problem]
        return bool(others) and gone <= self.allow_missing and not any(state.lacks for state in others)

    @property
    def is_gone(self) -> bool:
        """Whether the replicas that lack the goal are those that do not respond."""
        return not any(state.lacks and not state.problem for state in self.states)

    @property
    def is_missing(self) -> bool:
        """Whether a replica does not respond."""
        return any(state.problem for state in self.states)

    @property
    def lacking(self) -> str:
        """The replicas that lack the goal, with their reasons."""
        reasons = [str(state) if len(self.states) > 1 else state.lacks for state in self.states if state.lacks]
        return "; ".join(reasons)


class MissingReplica(Unavailable):
    """Error for a replica that does not respond. `replica` is its address, or a DNS name without an address."""

    def __init__(self, replica: str, message: str) -> None:
        super().__init__(message)
        self.replica = replica

    def __str__(self) -> str:
        return f"{self.replica}: {self.message}"


def wait_until_agreed(
    look_again: Callable[[], Look],
    limit_s: float,
    pause_s: float,
    on_change: Callable[[Look], None],
    interrupted: Callable[[], bool],
) -> Look:
    """Look until the replicas agree, at most `limit_s` or until `interrupted`, and return the last look. Blocks.

    `on_change` gets the first look that does not agree, and each one with other reasons than the look before it.
    """
    deadline_s = time.monotonic() + limit_s
    said = ""
    while not (look := look_again()).agrees and time.monotonic() <= deadline_s and not interrupted():
        if look.lacking != said:
            said = look.lacking
            on_change(look)
        time.sleep(pause_s)
    return look


class Replicas:
    """The servers that must all have a configuration, for use in a `with` statement. Belongs to one thread.

    Each look resolves DNS names again: replicas that appear count, and replicas that their names omit do not. A name
    without any address counts as a replica that does not respond.
    """

    def __init__(self, places: Sequence[Place], connect: Callable[[str], ModelService], allow_missing: int = 0) -> None:
        """Take the places. `allow_missing` is the number of replicas that may not respond."""
        self._places = places
        self._connect = connect
        self._allow_missing = allow_missing
        self._services: dict[str, ModelService] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for service in self._services.values():
            service.__exit__()

    def services(self) -> dict[str, ModelService]:
        """Return the client of each replica, by address. Blocks for DNS."""
        return self._resolved()[0]

    def _resolved(self) -> tuple[dict[str, ModelService], list[str]]:
        """Return the clients, and the DNS names without an address."""
        found = {place: place.addresses() for place in self._places}
        addresses = dict.fromkeys(itertools.chain.from_iterable(found.values()))
        for address in [one for one in self._services if one not in addresses]:
            self._services.pop(address).__exit__()
        for address in addresses:
            if address not in self._services:
                self._services[address] = self._connect(address)
        clients = {address: self._services[address] for address in addresses}
        return clients, [place.name for place, its_addresses in found.items() if not its_addresses]

    def look(self, goal: Goal) -> Look:
        """Ask every replica. Blocks, up to the timeout of a request for each one that does not respond."""
        services, empty = self._resolved()
        states = (_state(address, service, goal) for address, service in services.items())
        missing = (ReplicaState(name, problem=_NO_ADDRESS, lacks=_NO_ADDRESS) for name in empty)
        return Look((*states, *missing), self._allow_missing)

    def responding(self, model: str) -> dict[str, ModelService]:
        """Return the replicas that respond, and check that no more are missing than may be.

        Raises TpuserveError: MissingReplica, or the error of a replica that refuses the request.
        """
        found: dict[str, ModelService] = {}
        services, empty = self._resolved()
        missing: list[TpuserveError] = [MissingReplica(name, f"the name {_NO_ADDRESS}") for name in empty]
        for address, service in services.items():
            try:
                service.available(model)
                found[address] = service
            except (Unavailable, DeadlineExceeded) as error:
                missing.append(MissingReplica(address, error.message))
            except TpuserveError as error:
                error.message = named(address, error.message, services)
                missing.append(error)
        if missing and (len(missing) > self._allow_missing or not found):
            raise missing[0]
        return found


def named(address: str, words: str, among: Mapping[str, object]) -> str:
    """Return the words about a replica, with its address if there are several."""
    return f"{address}: {words}" if len(among) > 1 else words


def version_text(version: int | None) -> str:
    return "none" if version is None else f"version {version}"


def _state(address: str, service: ModelService, goal: Goal) -> ReplicaState:
    try:
        # The hash first: a server that has it also has the labels, and an error of the labels shows a dead server.
        sha256 = service.configuration_sha256(goal.model)
        labels = {label: service.labelled(goal.model, label) for label in goal.labels}
    except TpuserveError as error:
        return ReplicaState(address, problem=error.message, lacks=f"does not respond: {error.message.rstrip('.')}")
    lacks = []
    if sha256 not in ("", goal.sha256):
        lacks.append(f"has the configuration {sha256[:_SHOWN_DIGITS]}, not {goal.sha256[:_SHOWN_DIGITS]}")
    lacks += [
        f"has label {label} at {version_text(labels[label])}, not {version_text(version)}"
        for label, version in goal.labels.items()
        if labels[label] != version
    ]
    return ReplicaState(address, sha256, labels, lacks=", and ".join(lacks))
