"""Reply: the content of a protocol's response, before the soak compares it with its request."""

from dataclasses import dataclass

from tests.soak.question import ENSEMBLE, Question, WrongAnswerError


@dataclass(frozen=True, slots=True)
class Reply:
    """The versions that a response proves: `proven` by its values, `reported` by a field. None: it has none."""

    proven: int | None
    reported: int | None = None

    def version(self, question: Question) -> int | None:
        """Return the version. Raises WrongAnswerError if the two differ.

        An ensemble reports its own version, which counts its configurations.
        """
        if question.model == ENSEMBLE:
            return self.proven
        if None not in (self.proven, self.reported) and self.proven != self.reported:
            raise WrongAnswerError(
                f"{question.model}: version {self.proven} by its values, {self.reported} by its name"
            )
        return self.reported if self.proven is None else self.proven
