"""Generate text with a served character LSTM, one character per request, several texts in one batch.

    tpuserve serve --model_name=char_lstm --model_base_path=$PWD/models/char_lstm
    python examples/char_lstm/generate.py --prompt "The server "

Each response contains the model's state, which the client sends with the next request.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.char_lstm.text import decode, encode
from tpuserve_client import Client, TensorSpec, TpuserveError


class Writer:
    """Writer of several texts of the same length with a served model."""

    def __init__(self, client: Client, model: str, texts: int, temperature: float, seed: int) -> None:
        self._client = client
        self._model = model
        self._temperature = temperature
        self._random = np.random.default_rng(seed)
        inputs = client.metadata(model).signature("serving_default").inputs
        self._state = {name: np.zeros((texts, _width(inputs[name])), np.float32) for name in ("hidden", "cell")}

    def read(self, char: NDArray[np.int32]) -> NDArray[np.float32]:
        """Send one character per text. Return the logits of the next character, float32 [texts, characters]."""
        answer = self._client.predict(self._model, {"char": char, **self._state})
        self._state = {name: answer[name] for name in self._state}
        return answer["logits"]

    def write(self, prompt: str, length: int) -> list[str]:
        """Return the texts, which all begin with `prompt`."""
        texts = len(self._state["hidden"])
        for char in encode(prompt):
            logits = self.read(np.repeat(char, texts))
        written = []
        for _ in range(length):
            written.append(self._choose(logits))
            logits = self.read(written[-1])
        return [prompt + decode(one) for one in np.transpose(written)]

    def _choose(self, logits: NDArray[np.float32]) -> NDArray[np.int32]:
        """Draw from the softmax at the temperature, by the argmax after adding Gumbel noise."""
        noise = self._random.gumbel(size=logits.shape)
        chosen: NDArray[np.int32] = np.argmax(logits + self._temperature * noise, axis=1).astype(np.int32)
        return chosen


def _width(spec: TensorSpec) -> int:
    """Return the width of a state [batch, width]."""
    if spec.shape is None or spec.shape[-1] is None:
        raise TpuserveError("the model's state has no fixed width")
    return spec.shape[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--server", default="localhost:8500", help="gRPC address of the server (default: localhost:8500)."
    )
    parser.add_argument("--model", default="char_lstm", help="Name of the model on the server (default: char_lstm).")
    parser.add_argument("--prompt", default="The server ", help="First characters of each text.")
    parser.add_argument(
        "--length", type=int, default=200, help="Number of characters to write after the prompt (default: 200)."
    )
    parser.add_argument("--texts", type=int, default=2, help="Number of texts, written in one batch (default: 2).")
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.5,
        help="Sampling temperature. 0 selects the likeliest character (default: 0.5).",
    )
    parser.add_argument("--seed", type=int, default=1, help="Seed of the random sampling (default: 1).")
    options = parser.parse_args()
    if not options.prompt:
        parser.error("--prompt is empty. Give at least one character.")
    try:
        with Client(options.server) as client:
            writer = Writer(client, options.model, options.texts, options.temperature, options.seed)
            for text in writer.write(options.prompt, options.length):
                print(f"{text}\n{'-' * 20}")
    except TpuserveError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
