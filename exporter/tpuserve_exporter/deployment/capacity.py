"""The capacity of one server, from the JSON document of a load test, and the replicas for a rate."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import Field, ValidationError

from tpuserve_exporter.errors import OptionConflict, SourceUnreadable
from tpuserve_exporter.programs.version_programs import Entry

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# Objectives such as `p99<=20ms`. They become comments of YAML, so they have no line breaks.
_Threshold = Annotated[str, Field(pattern=r"^[\w .%/<>=]{1,80}$")]
# A quotient of two rates may exceed the exact one by rounding, which must not add a server.
_DIGITS = 9


_Kind = TypeVar("_Kind", bound=Entry)


class _Search(Entry):
    model: str
    objectives: tuple[_Threshold, ...] = Field(min_length=1)
    rows_per_request: _Positive
    rate_per_s: _Positive | None


class _Gate(Entry):
    gate: _Threshold
    failed: bool


class _Generator(Entry):
    trusted: bool


class _Total(Entry):
    rate_per_s: float = Field(ge=0, allow_inf_nan=False)


class _Run(Entry):
    model: str
    exit_code: int
    rows_per_request: _Positive
    total: _Total
    generator: _Generator
    gates: tuple[_Gate, ...]


@dataclass(frozen=True, slots=True)
class Capacity:
    """The highest rate that one server was shown to hold, in requests/s of `rows` rows in the mean.

    `terms` are the objectives of the search, or the gates of the run.
    """

    requests_per_s: float
    rows: float
    terms: tuple[str, ...]
    model: str

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the document of `tpuserve loadtest search --json`, or of `run --json` with gates.

        Raises:
            SourceUnreadable: the file is no such document.
            OptionConflict: the load test did not show that the server holds a rate.
        """
        try:
            text = path.read_bytes()
        except OSError as error:
            raise SourceUnreadable(f"cannot read {path}: {error.strerror}") from error
        if (search := _parse(_Search, text)) is not None:
            return cls._of_search(path, search)
        if (run := _parse(_Run, text)) is not None:
            return cls._of_run(path, run)
        raise SourceUnreadable(
            f"{path} is not a document of `tpuserve loadtest search --json`, nor of `tpuserve loadtest run --json`"
        )

    @classmethod
    def _of_search(cls, path: Path, document: _Search) -> Self:
        if document.rate_per_s is None:
            raise OptionConflict(f"{path}: no rate holds {' and '.join(document.objectives)}, so there is no capacity")
        return cls(document.rate_per_s, document.rows_per_request, document.objectives, document.model)

    @classmethod
    def _of_run(cls, path: Path, document: _Run) -> Self:
        if not document.gates:
            raise OptionConflict(
                f"{path}: the run has no objective. Use `tpuserve loadtest search --slo`, or --fail-if 'p99>20ms'"
            )
        if document.exit_code or any(one.failed for one in document.gates):
            raise OptionConflict(
                f"{path}: the run failed with exit code {document.exit_code}, so its rate is no capacity"
            )
        if not document.generator.trusted:
            raise OptionConflict(f"{path}: the load generator was the limit, so the capacity of the server is unknown")
        if not document.total.rate_per_s:
            raise OptionConflict(f"{path}: no request of the run succeeded")
        terms = tuple(f"not {one.gate}" for one in document.gates)
        return cls(document.total.rate_per_s, document.rows_per_request, terms, document.model)


def _parse(kind: type[_Kind], text: bytes) -> _Kind | None:
    try:
        return kind.model_validate_json(text)
    except ValidationError:
        return None


@dataclass(frozen=True, slots=True)
class Demand:
    """A rate of requests that all servers together must hold, in requests/s. `headroom` is a number of servers."""

    rate_per_s: float
    capacity: Capacity
    headroom: int

    @property
    def for_load(self) -> int:
        """The servers that hold the rate: ceil(rate / capacity of one server)."""
        return math.ceil(round(self.rate_per_s / self.capacity.requests_per_s, _DIGITS)) or 1

    @property
    def replicas(self) -> int:
        """All servers: ceil(rate / capacity of one server) + headroom.

        With a headroom of 1, the others still hold the rate while one server fails, drains or restarts.
        """
        return self.for_load + self.headroom

    @property
    def utilization(self) -> float:
        """The share of the capacity of all servers that the rate takes."""
        return self.rate_per_s / (self.replicas * self.capacity.requests_per_s)
