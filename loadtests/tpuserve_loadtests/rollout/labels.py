"""The labels of a model in the source of truth and on every replica, and their joint update.

A reload replaces the whole configuration of a server, and sends the file. Therefore, the file must match the server's
configuration before an update. After a restart, the server then has the same labels.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tpuserve_client.errors import DeadlineExceeded, TpuserveError, Unavailable
from tpuserve_formats.counted import counted
from tpuserve_loadtests.rollout.model_config_text import BadConfig
from tpuserve_loadtests.rollout.moves import LABELS, Move, NotMoved, ServerGone, Standing
from tpuserve_loadtests.rollout.programs import Conflict
from tpuserve_loadtests.rollout.replicas import (
    Goal,
    Look,
    Replicas,
    ReplicaState,
    named,
    version_text,
    wait_until_agreed,
)
from tpuserve_loadtests.rollout.sources import Source

# The way to the servers: a reload request to each, or their own polling of the source.
Apply: TypeAlias = Literal["reload", "poll"]

_LOOK_S: Final = 0.2
# Attempts to write labels while other processes change the source, too.
_WRITES: Final = 5


class Labels:
    """Mover of a model's labels. A label has a version, or None if it does not exist. Belongs to one thread."""

    wording = LABELS

    def __init__(
        self,
        source: Source,
        model: str,
        replicas: Replicas,
        apply: Apply,
        patience_s: float,
        on_wait: Callable[[str], None] = lambda words: None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        """Read the source. The replicas may take `patience_s` seconds to apply a change.

        `on_wait` receives a message when the labels have to wait for replicas, and when their states change. A move
        stops to wait when `interrupted`, but a return does not. Raises BadConfig for an invalid file.
        """
        self._source = source
        self._model = model
        self._replicas = replicas
        self._apply = apply
        self._patience_s = patience_s
        self._on_wait = on_wait
        self._interrupted = interrupted
        # The configuration that the replicas should have.
        self.config = source.read()

    def check(self) -> None:
        """Raise BadConfig if the file cannot be written, or differs from the configuration of a replica.

        A reload would otherwise change more than the labels. Raises TpuserveError if a replica does not respond.
        """
        self._source.check_writable()
        services = self._replicas.responding(self._model)
        for address, service in services.items():
            for model in self.config.models:
                try:
                    service.available(model)
                except TpuserveError as error:
                    raise _differs(named(address, f"model {model}: {error.message}", services)) from None
                for label, version in self.config.labels(model).items():
                    served = service.labelled(model, label)
                    # A label may have an unavailable version in the file, but not a different one.
                    if served != version and (served is not None or model == self._model):
                        words = f"label {label} of {model} is {version_text(version)} in the file, "
                        raise _differs(named(address, f"{words}{version_text(served)} on the server", services))
        look = self._replicas.look(self._goal({}))
        if not look.agrees:
            raise _differs(look.lacking)

    def moves(self, labels: Iterable[str], new: int) -> list[Move]:
        """Return the moves of the labels, in order, to the version `new`."""
        now = self.config.labels(self._model)
        return [Move(f"label {label}", label, now.get(label), new, _words(now.get(label), new)) for label in labels]

    def move(self, changes: Mapping[str, int | None]) -> None:
        """Move labels, and block until every replica applies them.

        Raises NotMoved if one does not, with the file restored.
        """
        before = self.config
        try:
            if self._source.read().text != before.text:
                raise NotMoved(f"another process changed {self._source} during the rollout; the file is left unchanged")
            changed = before.with_labels(self._model, changes)
            if changed.text == before.text and self.look(changes).agrees:
                return
            if changed.text != before.text:
                self._source.write(changed, self._reason(changes))
        except BadConfig as error:
            raise NotMoved(f"{self._source}: {error}") from None
        self.config = changed
        refusal = self._send(self.look(changes))
        # A failed reload may still have changed a server, so the current labels decide.
        look = self.look(changes) if refusal else self.wait(changes)
        if look.agrees:
            return
        self.config = before
        versions = before.labels(self._model)
        old = {label: versions.get(label) for label in changes}
        failure = self._write_labels(old)
        if not failure and not refusal:
            failure = str(self._send(self.look(old)) or "")
        again = f"; the labels could not be restored: {failure}" if failure else ""
        stand = "; ".join(map(str, self.standings(changes)[0]))
        raise NotMoved(f"{refusal or f'the server did not apply the change: {look.lacking}'}{again}. {stand}")

    def restore(self, labels: Mapping[str, int | None]) -> None:
        """Write the labels' versions to the file, and then send the file until every replica has them.

        The file comes first, because a server that stopped reads it when it starts. In a file that another process
        changed in the meantime, only the labels change. Blocks up to `patience_s` for replicas that do not respond.

        Raises:
            ServerGone: the file has the labels, and the server or some replicas do not respond.
            NotMoved: the file cannot be written, or a replica does not apply the labels.
        """
        problem = self._write_labels(labels)
        try:
            self.config = self.config.with_labels(self._model, labels)
            self._send_until_applied(labels)
        except BadConfig as error:
            raise NotMoved(f"{self._source}: {error}") from None
        except NotMoved as error:
            raise NotMoved(f"{problem}; {error}") if problem else error from None
        if problem:
            raise NotMoved(problem)

    def look(self, labels: Mapping[str, int | None]) -> Look:
        """Return whether every replica has the configuration and these labels. Blocks for the replicas."""
        return self._replicas.look(self._goal(labels))

    def wait(self, labels: Mapping[str, int | None]) -> Look:
        """Block until every replica has the configuration and these labels, at most `patience_s`, or `interrupted`."""

        def report(look: Look) -> None:
            if len(look.states) != 1:
                self._on_wait(self._waiting(look))

        return wait_until_agreed(lambda: self.look(labels), self._patience_s, _LOOK_S, report, self._interrupted)

    def standings(self, labels: Iterable[str]) -> tuple[tuple[Standing, ...], tuple[ReplicaState, ...]]:
        """Return the states of the labels, and of the replicas compared with the configuration. Blocks."""
        try:
            in_file = {label: version_text(self._source.read().labels(self._model).get(label)) for label in labels}
        except BadConfig as error:
            in_file = dict.fromkeys(labels, f"unknown ({error})")
        have = self.config.labels(self._model)
        states = self.look({label: have.get(label) for label in in_file}).states
        return tuple(Standing(label, words, _on_servers(label, states)) for label, words in in_file.items()), states

    def restored_words(self, values: Mapping[str, int | None]) -> str:
        return "; ".join(
            f"{label} removed" if at is None else f"{label} to version {at}" for label, at in values.items()
        )

    def summary(self, look: Look) -> str:
        """Describe a look that agrees: the replicas, and their configuration."""
        following = [state for state in look.states if not state.lacks]
        have = f"{len(following)} of {counted(len(look.states), 'replica')}"
        return f"{have} with the configuration {following[0].configuration}"

    def _goal(self, labels: Mapping[str, int | None]) -> Goal:
        return Goal(self._model, self.config.sha256, labels)

    def _reason(self, labels: Mapping[str, int | None]) -> str:
        moves = (f"{label} to {version_text(at)}" for label, at in labels.items())
        return f"Set labels of {self._model}: {', '.join(moves)}"

    def _write_labels(self, wanted: Mapping[str, int | None]) -> str:
        """Write the versions into the current text. Return why they cannot be written, or an empty string."""
        for attempt in range(_WRITES):
            try:
                current = self._source.read()
                changed = current.with_labels(self._model, wanted)
                if changed.text != current.text:
                    self._source.write(changed, self._reason(wanted))
            except Conflict as error:
                if attempt + 1 == _WRITES:
                    return f"the labels cannot be written to {self._source}: {error}"
            except BadConfig as error:
                return f"the labels cannot be written to {self._source}: {error}"
            else:
                if self._apply == "poll":  # the servers read the changes of other processes, too
                    self.config = changed
                break
        return ""

    def _send_until_applied(self, labels: Mapping[str, int | None]) -> None:
        """Send the file until every replica has the labels. Raises NotMoved and ServerGone."""
        deadline_s = time.monotonic() + self._patience_s
        look = self.look(labels)
        was_gone, said = look.is_missing, ""
        while not look.agrees:
            refusal = self._send(look)
            # A failed reload may still have changed a server, so the current labels decide.
            look = self.look(labels)
            if look.agrees:
                return
            # A server that restarts can refuse a label until it has loaded the version.
            is_final = refusal is not None and refusal.is_final and not look.is_missing and not was_gone
            if is_final or time.monotonic() > deadline_s:
                raise self._give_up(refusal, look, labels)
            # A single server is named once, and every change of several replicas.
            if (look.is_missing and not said) if len(look.states) == 1 else look.lacking != said:
                said = look.lacking
                self._on_wait(self._waiting(look))
            was_gone = was_gone or look.is_missing
            time.sleep(_LOOK_S)

    def _give_up(self, refusal: "_Refusal | None", look: Look, labels: Iterable[str]) -> NotMoved:
        if look.is_gone:
            return ServerGone(self._gone(look))
        standings = "; ".join(map(str, self.standings(labels)[0]))
        return NotMoved(f"{refusal or f'the server did not apply the change: {look.lacking}'}. {standings}")

    def _gone(self, look: Look) -> str:
        words = f"the server {look.lacking}" if len(look.states) == 1 else look.lacking
        try:
            labels = self._source.read().labels(self._model)
        except BadConfig as error:
            return f"{words}. {self._source} cannot be read: {error}"
        listed = ", ".join(f"{label}: version {version}" for label, version in sorted(labels.items())) or "no labels"
        return f"{words}. {self._source} has {listed}; a server that starts with this file serves these versions"

    def _waiting(self, look: Look) -> str:
        if len(look.states) == 1 and look.is_missing:
            return f"{self._gone(look)}. Waiting for the server, at most {self._patience_s:g} s."
        lacking = sum(bool(state.lacks) for state in look.states)
        of = f"{lacking} of {counted(len(look.states), 'replica')}, at most {self._patience_s:g} s"
        return f"Waiting for {of}: {look.lacking}"

    def _send(self, look: Look) -> "_Refusal | None":
        """Send the file to the replicas that `look` found lacking, and return their refusals.

        Replicas that did not respond come last, so that their timeouts do not delay the others.
        """
        if self._apply == "poll":
            return None
        services = self._replicas.services()
        states = {state.address: state for state in look.states}
        addresses = [address for address in services if address not in states or states[address].lacks]
        refusals: list[str] = []
        is_final = False
        for address in sorted(addresses, key=lambda each: each in states and bool(states[each].problem)):
            try:
                services[address].reload(self.config.message)
            except TpuserveError as error:
                is_final = is_final or not isinstance(error, Unavailable | DeadlineExceeded)
                refusals.append(named(address, f"the server refused the reload: {error.message}", services))
        return _Refusal("; ".join(refusals), is_final) if refusals else None


@dataclass(frozen=True, slots=True)
class _Refusal:
    """The errors of reloads. They are final if a server has refused the configuration itself."""

    words: str
    is_final: bool

    def __str__(self) -> str:
        return self.words


def _words(now: int | None, then: int) -> str:
    return f"to version {then}" if now is None else f"from version {now} to {then}"


def _differs(words: str) -> BadConfig:
    return BadConfig(f"the file differs from the server: {words}")


def _on_servers(label: str, states: Iterable[ReplicaState]) -> str:
    """Return the versions of a label on the replicas, with their addresses if they differ."""
    by_version: dict[str, list[str]] = {}
    for state in states:
        words = f"unknown ({state.problem})" if state.labels is None else version_text(state.labels.get(label))
        by_version.setdefault(words, []).append(state.address)
    if len(by_version) == 1:
        return next(iter(by_version))
    return ", ".join(f"{words} ({', '.join(addresses)})" for words, addresses in by_version.items()) or "unknown"
