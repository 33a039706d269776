"""Sends the forms of a model of the zoo over every protocol, and judges the responses."""

import base64
import random
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tests.zoo.catalogue.operation import Operation
from tests.zoo.forms import Form, Kind, forms
from tests.zoo.protocols import Protocol, Request, read, write
from tests.zoo.reference import Outputs, Reference
from tests.zoo.sandbox import Outcome, Verdict
from tpuserve_server.core.terms.types import Array, Tensors

# Limits of one request.
MOST_MS: Final = 200.0
MOST_MB: Final = 50.0
# A slow or large answer is measured again: the machine runs other processes, and first runs allocate.
TRIES: Final = 3
# A model that ends or hangs so often gets no more forms of the same kind.
MOST_ENDS: Final = 6


@dataclass(frozen=True, slots=True)
class Line:
    """One request of the zoo. `fault` is empty for a request that was answered rightly or refused within the limits."""

    saved: str
    model: str
    kind: Kind
    form: str
    protocol: Protocol
    verdict: Verdict
    ms: float
    mb: float
    fault: str


class Served(typing.Protocol):
    """A model in a sandbox, or a server of many models."""

    def send(self, request: Request) -> Outcome:
        """Send a request and measure it."""
        ...


class Sweep:
    """One model of the zoo, which `served` serves, and the right answers to its requests."""

    def __init__(
        self,
        saved: str,
        operation: Operation,
        served: Served,
        protocols: Sequence[Protocol],
        reference: Reference | None,
        name: str = "m",
    ) -> None:
        """Take the name of the served model. Without a reference, the answers over all protocols must be equal."""
        self._saved = saved
        self._operation = operation
        self._served = served
        self._protocols = protocols
        self._reference = reference
        self._name = name

    @property
    def title(self) -> str:
        """The model, and how it was saved."""
        return f"{self._saved} {self._operation.name}"

    def lines(self, most_of_kind: int) -> Iterator[Line]:
        """Yield a line for each form and protocol, of at most `most_of_kind` forms of each kind."""
        for chosen in sampled(self._operation, most_of_kind).values():
            ends = 0
            for form in chosen:
                if ends >= MOST_ENDS:
                    break
                for line in self._lines_of(form):
                    yield line
                    if line.verdict in (Verdict.DIED, Verdict.HUNG):
                        ends += 1
                        break

    def _lines_of(self, form: Form) -> Iterator[Line]:
        inputs = filled(self._operation, form)
        if inputs is None:
            return
        first: Outputs | None = None
        for protocol in self._protocols:
            # The other protocols have no complex numbers.
            is_complex = first is not None and any(value.dtype.kind == "c" for value in first.values())
            request = None if is_complex else write(protocol, self._name, inputs)
            if request is None:
                continue
            outcome = self._served.send(request)
            for _ in range(TRIES - 1):
                if outcome.is_end or (outcome.ms <= MOST_MS and outcome.mb <= MOST_MB):
                    break
                again = self._served.send(request)
                outcome = replace(again, ms=min(again.ms, outcome.ms), mb=min(again.mb, outcome.mb))
            fault = fault_of(outcome, form.kind)
            if outcome.verdict is Verdict.ANSWERED and not fault:
                outputs = read(protocol, outcome.body, outcome.headers)
                if first is None:
                    first = outputs
                    # For another rank, TensorFlow builds another graph.
                    fault = "" if form.kind is Kind.RANK else self._compare_with_reference(inputs, first)
                elif self._operation.repeats and not _are_equal(first, outputs, protocol):
                    fault = f"wrong: the answer differs from that over {self._protocols[0]}"
            yield Line(
                self._saved, self._operation.name, form.kind, str(form), protocol, outcome.verdict, outcome.ms,
                outcome.mb, fault,
            )  # fmt: skip

    def _compare_with_reference(self, inputs: Tensors, outputs: Outputs) -> str:
        expected = None if self._reference is None else self._reference.outputs(inputs)
        if expected is None or _are_equal(expected, outputs, None):
            return ""
        return f"wrong: {_shown(outputs)}, expected {_shown(expected)}"


def sampled(operation: Operation, most: int) -> dict[Kind, list[Form]]:
    """Return a sample of the forms by their kinds, always the same one."""
    found: dict[Kind, list[Form]] = {}
    for form in forms(operation):
        found.setdefault(form.kind, []).append(form)
    return {kind: random.Random(1).sample(some, min(most, len(some))) for kind, some in found.items()}


def filled(operation: Operation, form: Form) -> dict[str, Array] | None:
    """Return the inputs, or None for a form that numpy cannot hold."""
    try:
        return {name: one.filled(form.shapes[name]) for name, one in operation.inputs.items()}
    except ValueError:
        return None


def fault_of(outcome: Outcome, kind: Kind) -> str:
    """Return what is wrong with an outcome, or "" for an answer or a refusal within the limits."""
    if outcome.is_end:
        return f"{outcome.verdict} {outcome.detail}".strip()
    if outcome.ms > MOST_MS:
        return f"slow: {outcome.ms:.0f} ms"
    if outcome.mb > MOST_MB:
        return f"memory: {outcome.mb:.0f} MB"
    if kind is Kind.VALID and outcome.verdict is not Verdict.ANSWERED:
        return f"a valid request is {outcome.verdict}: {outcome.detail}"
    return ""


def _are_equal(first: Outputs, outputs: Outputs, protocol: Protocol | None) -> bool:
    if protocol is Protocol.TF_REST:
        # A single output has no name, and JSON loses the dimensions after an empty one.
        named = outputs if set(outputs) == set(first) else dict(zip(first, outputs.values(), strict=False))
        return all(_are_same(first[name], named[name]) for name in first)
    return set(first) == set(outputs) and all(
        first[name].shape == outputs[name].shape and _are_same(first[name], outputs[name]) for name in first
    )


def _are_same(one: Array, other: Array) -> bool:
    one, other = one.ravel(), other.ravel()
    if one.size != other.size:
        return False
    if one.dtype.kind in "OSU":
        return [_text(item) for item in one.tolist()] == [_text(item) for item in other.tolist()]
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    return bool(np.allclose(one.astype(wide), other.astype(wide), rtol=1e-4, atol=1e-5, equal_nan=True))


def _text(item: object) -> str:
    if isinstance(item, dict):
        item = base64.b64decode(item["b64"])
    return item.decode(errors="replace") if isinstance(item, bytes) else str(item)


def _shown(outputs: Outputs) -> str:
    return ", ".join(f"{name}{list(value.shape)}={value.ravel()[:4]}" for name, value in outputs.items())
