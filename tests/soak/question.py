"""Question: one request of the soak, and the proof that an answer belongs to it and to one version.

Each request has its own numbers, so the answer of another request, of another version, or of a neighbour in the batch
is wrong in a way that shows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

# The models of the soak: see graphs.py and soaked_server.py.
COUNTED: Final = "counted"
LABELLED: Final = "labelled"
ENSEMBLE: Final = "photos"
SEQUENCES: Final = "sequences"
STUCK: Final = "stuck"
CRASHING: Final = "crashing"

# y = x * (BASE + version), or three times as much from the ensemble.
BASE: Final = 1000
TRIPLED: Final = 3
FEATURE: Final = "number"
CLASSIFY: Final = "classify"
REGRESS: Final = "regress"
# Sums below 2^24 are exact in float32, so versions may have up to 14 bits.
REGRESS_MODULUS: Final = 1024
MOST_ROWS: Final = 4
# The outputs stay below 2^53, which every JSON parser reads exactly.
_FIRST: Final = 1_000_003
_LONGEST: Final = 16

# Integers, or bytes as objects.
Tensors: TypeAlias = dict[str, NDArray[Any]]


class WrongAnswerError(Exception):
    """An answer that does not belong to its request. The message has both."""


@dataclass(frozen=True, slots=True)
class Question:
    """Request number `number` of the run, with `rows` rows. `label` and `version` name a version."""

    number: int
    model: str
    rows: int = 1
    label: str = ""
    version: int = 0

    @property
    def x(self) -> list[int]:
        return [_FIRST + self.number * MOST_ROWS + row for row in range(self.rows)]

    @property
    def text(self) -> list[str]:
        """Texts of different lengths, with characters of one to four bytes."""
        return [f"request {x} ü€𝄞" + "." * (x % 7) for x in self.x]

    @property
    def inputs(self) -> Tensors:
        """The inputs of Predict."""
        if self.model == SEQUENCES:
            length = self.number % _LONGEST + 1
            return {"ids": np.array([[x + position for position in range(length)] for x in self.x], np.int64)}
        if self.model in (STUCK, CRASHING):
            # The model counts to this number.
            return {"steps": np.array([self.number % 100 + 1], np.int64)}
        text = np.array([text.encode() for text in self.text], object)
        return {"x": np.array(self.x, np.int64), "text": text}

    def prove(self, outputs: Mapping[str, NDArray[Any]]) -> int | None:
        """Return the version that answered Predict, or None if the model's answers do not depend on it.

        Raises WrongAnswerError unless each row has the values of this request.
        """
        if self.model == SEQUENCES:
            ids = self.inputs["ids"]
            self._expect({"doubled": 2 * ids, "total": ids.sum(axis=1)}, outputs)
            return None
        if self.model in (STUCK, CRASHING):
            self._expect({"counted": self.inputs["steps"]}, outputs)
            return None
        scale = self.x[0] * (TRIPLED if self.model == ENSEMBLE else 1)
        version = int(outputs["y"].flat[0]) // scale - BASE if "y" in outputs and outputs["y"].size else 0
        y = np.array(self.x, np.int64) * (scale // self.x[0] * (BASE + version))
        same = np.array([f"v{version}:{text}".encode() for text in self.text], object)
        self._expect({"y": y, "same": same}, outputs)
        return version

    def prove_classes(self, rows: Iterable[Iterable[tuple[str, float]]]) -> int:
        """Return the version of Classify's answer: for each row, pairs of a class and its score."""
        got = [[(name, float(score)) for name, score in row] for row in rows]
        version = int(got[0][0][1]) if got and got[0] else 0
        if got != [[(f"v{version}:{x}", float(version))] for x in self.x]:
            raise WrongAnswerError(f"x {self.x}: got the classes {got!r:.600}")
        return version

    def prove_values(self, values: Sequence[float]) -> int:
        """Return the version of Regress's answer."""
        version = int(values[0]) // REGRESS_MODULUS if values else 0
        if list(values) != [float(x % REGRESS_MODULUS + REGRESS_MODULUS * version) for x in self.x]:
            raise WrongAnswerError(f"x {self.x}: got the values {values!r:.600}")
        return version

    def _expect(self, expected: Tensors, outputs: Mapping[str, NDArray[Any]]) -> None:
        same = outputs.keys() == expected.keys() and all(
            np.array_equal(outputs[name], values) for name, values in expected.items()
        )
        if not same:
            raise WrongAnswerError(f"{self.model}: sent {self.inputs}: got {dict(outputs)!r:.600}")
