"""What a rollout moves, labels or traffic: the moves, the words for them, and the contract of their movers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tpuserve_loadtests.rollout.replicas import Look, ReplicaState, version_text


class NotMoved(Exception):
    """Error for a move that failed. The message states the reason and the state."""


class ServerGone(NotMoved):
    """Error for labels that the file has, while the server, or some replicas, do not respond."""


@dataclass(frozen=True, slots=True)
class Move:
    """A step of a rollout: the value of `key` changes from `now` to `then`, which `words` describe."""

    name: str
    key: str
    now: int | None
    then: int
    words: str


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a label or of the traffic, in words: in the source, and on the servers.

    `template` is the sentence of both.
    """

    label: str
    in_file: str
    server: str
    template: str = "label {0.label}: {0.in_file} in the file, {0.server} on the server"

    def __str__(self) -> str:
        return self.template.format(self)


@dataclass(frozen=True, slots=True)
class Wording:
    """The words of reports for what moves.

    `value` describes the value of a key, `advice` the repair by hand, and `check` the last gate and its plan.
    """

    title: str
    columns: tuple[str, str, str, str]
    unmoved: str
    back: str
    advice: str
    check: tuple[str, str]
    value: Callable[[int | None], str]

    @property
    def noun(self) -> str:
        return self.title.lower()

    @property
    def step_back(self) -> str:
        """The name of the entry for the return, which is no step of the plan."""
        return f"{self.noun} back"


LABELS: Final = Wording(
    title="Labels",
    columns=("label", "before", "file", "server"),
    unmoved="no label was moved",
    back="labels were moved back",
    advice="Set them in the file and reload it",
    check=("replicas", "check the configuration and the label on every replica"),
    value=version_text,
)


class Mover(Protocol):
    """Mover of one model's labels, or of its traffic. Belongs to one thread; every move blocks.

    If `move` raises NotMoved, it has restored the state as far as possible. `restore` sets several values in one step,
    first in the source. It raises ServerGone if only the source has them, and NotMoved otherwise.
    """

    wording: Wording

    def move(self, changes: Mapping[str, int | None]) -> None: ...

    def restore(self, values: Mapping[str, int | None]) -> None: ...

    def restored_words(self, values: Mapping[str, int | None]) -> str:
        """Describe values that were restored."""


class Observed(Mover, Protocol):
    """A mover whose state on the servers can be observed. Every method blocks, except for `summary`."""

    def look(self, values: Mapping[str, int | None]) -> Look:
        """Return whether the servers have the values."""

    def wait(self, values: Mapping[str, int | None]) -> Look:
        """Block until the servers have the values, for a limited time or until a signal."""

    def standings(self, keys: Iterable[str]) -> tuple[Sequence[Standing], Sequence[ReplicaState]]:
        """Return the states of the keys, and those of the replicas if the mover knows them."""

    def summary(self, look: Look) -> str:
        """Describe a look that agrees."""
