"""A character LSTM in Flax NNX with its state as inputs and outputs, because servers keep no state between requests."""

from collections.abc import Callable
from typing import Any

from flax import nnx

from examples.char_lstm.text import CHARACTERS

EMBEDDING = 32


class CharLstm(nnx.Module):  # type: ignore[misc]  # flax is untyped
    """One step: `char` int32 [batch], `hidden` and `cell` float32 [batch, width].

    Returns `logits` float32 [batch, characters] of the next character, and both states after the step.
    """

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Embed(len(CHARACTERS), EMBEDDING, rngs=rngs)
        self.lstm = nnx.LSTMCell(EMBEDDING, width, rngs=rngs)
        self.head = nnx.Linear(width, len(CHARACTERS), rngs=rngs)

    def __call__(self, char: Any, hidden: Any, cell: Any) -> dict[str, Any]:  # noqa: ANN401 - arrays of jax
        (cell, hidden), output = self.lstm((cell, hidden), self.embedding(char))
        return {"logits": self.head(output), "hidden": hidden, "cell": cell}


def build(width: int = 128) -> Callable[[], CharLstm]:
    """Return a builder for `--model examples.char_lstm.model:build`. The exporter creates the model without values."""
    return lambda: CharLstm(width, nnx.Rngs(0))
