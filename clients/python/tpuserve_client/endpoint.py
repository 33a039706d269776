"""Endpoints: the servers behind a client's addresses, and the choice of one for each attempt."""

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from tpuserve_client.address import Address

# Consecutive failures after which an endpoint is ejected, and the time of the first ejection in seconds. Each further
# ejection takes longer, up to the maximum. Envoy's outlier detection has the same form (base_ejection_time).
_FAILURES_BEFORE_EJECTION: Final = 3
_FIRST_EJECTION_S: Final = 5.0
_LONGEST_EJECTION_S: Final = 60.0
# gRPC looks up a name again at most every 30 seconds (min_time_between_resolutions_ms).
_RESOLUTION_LIFETIME_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server. `host` is the name that requests and certificates carry if `place` is one of the name's addresses."""

    place: Address
    host: str | None = None

    def __hash__(self) -> int:  # each call looks up its endpoint, and a string keeps its hash
        return hash(self.place.target)

    def __str__(self) -> str:
        return self.place.target if self.host is None else f"{self.place.target} ({self.host})"


@dataclass(slots=True)
class _Health:
    failures: int = 0
    ejections: int = 0
    ejected_until_s: float = 0.0


class Endpoints:
    """The endpoints of a client, in round-robin order without those that keep failing. Safe to share between threads.

    An endpoint is ejected after three failures in a row. After the ejection it receives requests again; the next
    failure ejects it for longer. If all endpoints are ejected, all are used.
    """

    def __init__(self, places: Sequence[Address], *, resolve_all: bool, clock: Callable[[], float]) -> None:
        self._places = tuple(places)
        self._clock = clock
        self._resolved: dict[Address, tuple[float, tuple[Endpoint, ...]]] = {}
        self._resolvable = tuple(place for place in places if place.host and (resolve_all or place.is_dns))
        self._all = tuple(Endpoint(place) for place in places if place not in self._resolvable)
        self._health: dict[Endpoint, _Health] = {}
        self._turn = 0
        self._lock = threading.Lock()

    def have_other_than(self, tried: Collection[Endpoint]) -> bool:
        """Return whether there is an endpoint that a call has not tried and that is not ejected."""
        return len(self._all) > 1 and any(one not in tried for one in self._healthy(self._all))

    def stale(self) -> Address | None:
        """Return an address whose name must be looked up now, or None."""
        for place in self._resolvable:
            if place not in self._resolved or self._resolved[place][0] <= self._clock():
                return place
        return None

    def put_lookup(self, place: Address, ips: Sequence[str]) -> None:
        """Replace the endpoints of `place`. Without addresses, keep the earlier ones until the next lookup.

        If there are no earlier ones, the next attempt looks up the name again.
        """
        with self._lock:
            made = tuple(Endpoint(place.at(ip), place.authority) for ip in sorted(set(ips)))
            kept = made or self._resolved.get(place, (0.0, ()))[1]
            self._resolved[place] = (self._clock() + (_RESOLUTION_LIFETIME_S if kept else 0.0), kept)
            fixed = [Endpoint(one) for one in self._places if one not in self._resolvable]
            self._all = (*fixed, *(one for _, found in self._resolved.values() for one in found))

    def choose(self, tried: Collection[Endpoint] = ()) -> Endpoint | None:
        """Return the next endpoint, preferably one that the call has not tried, or None if no name was resolved."""
        everything = self._all
        if len(everything) <= 1:
            return everything[0] if everything else None
        with self._lock:
            self._turn = turn = (self._turn + 1) % len(everything)
        ordered = everything[turn:] + everything[:turn]
        candidates = self._healthy(ordered) or ordered
        return next((one for one in candidates if one not in tried), candidates[0])

    def count_success(self, endpoint: Endpoint) -> None:
        """Forget the endpoint's failures."""
        if endpoint in self._health:
            with self._lock:
                self._health.pop(endpoint, None)

    def count_failure(self, endpoint: Endpoint) -> None:
        """Count a request without an answer, or one that the endpoint could not serve. May eject the endpoint."""
        if len(self._all) <= 1:
            return
        with self._lock:
            health = self._health.setdefault(endpoint, _Health())
            health.failures += 1
            if health.failures >= _FAILURES_BEFORE_EJECTION:
                seconds = min(_FIRST_EJECTION_S * 2**health.ejections, _LONGEST_EJECTION_S)
                health.ejected_until_s = self._clock() + seconds
                health.ejections += 1
                health.failures = _FAILURES_BEFORE_EJECTION - 1

    def _healthy(self, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
        now_s, health = self._clock(), self._health
        return [one for one in endpoints if (known := health.get(one)) is None or known.ejected_until_s <= now_s]
