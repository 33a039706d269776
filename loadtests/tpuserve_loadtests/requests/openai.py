"""Streamed chat completions, as OpenAI's servers and those of other language models answer them.

A line of such requests reads as a model with the inputs `prompt` and `max_tokens`, and the output `text`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from tpuserve_client.dtypes import STRING, Array
from tpuserve_client.errors import InvalidArgument
from tpuserve_client.exchange import Exchange, PredictCall
from tpuserve_client.model import DEFAULT_SIGNATURE_NAME, Signature, TensorSpec
from tpuserve_loadtests.requests.distribution import Distribution

_PROMPT: Final = TensorSpec("prompt", STRING, (None,))
_MAX_TOKENS: Final = TensorSpec("max_tokens", np.dtype(np.int32), (None,))
SIGNATURE: Final = Signature(
    DEFAULT_SIGNATURE_NAME,
    {"prompt": _PROMPT, "max_tokens": _MAX_TOKENS},
    {"text": TensorSpec("text", STRING, (None,))},
)
PATH: Final = "/v1/chat/completions"
MODELS: Final = Exchange("/v1/models", method="GET")
_DATA: Final = b"data:"
_DONE: Final = b"[DONE]"
_REQUESTS: Final = 256
_SEED: Final = 20
_DEFAULT_LENGTHS: Final = {"prompt": 64, "max_tokens": 64}
_WORDS: Final = ("time", "table", "river", "seven", "light", "garden", "between", "stone", "paper", "north")


def prompts(lengths: Mapping[str, Distribution]) -> dict[str, Array]:
    """Return random prompts. `lengths` are words of the `prompt`, and `max_tokens`. Raises InvalidArgument."""
    if unknown := lengths.keys() - _DEFAULT_LENGTHS.keys():
        raise InvalidArgument(f"--length needs prompt=WORDS or max_tokens=TOKENS, not {min(unknown) or 'a length'}.")
    random = np.random.default_rng(_SEED)
    drawn = {
        name: lengths[name].draw(_REQUESTS, random) if name in lengths else np.full(_REQUESTS, default)
        for name, default in _DEFAULT_LENGTHS.items()
    }
    texts = [" ".join(random.choice(_WORDS, int(words))).encode() for words in drawn["prompt"]]
    return {"prompt": np.array(texts, STRING), "max_tokens": drawn["max_tokens"].astype(np.int32)}


def chat(call: PredictCall) -> Exchange:
    """Encode a request with one prompt. Raises InvalidArgument for several."""
    if len(call.inputs["prompt"]) != 1:
        raise InvalidArgument("A chat request has one prompt. Omit --rows.")
    document = {
        "model": call.spec.name,
        "messages": [{"role": "user", "content": call.inputs["prompt"][0].decode(errors="replace")}],
        "max_tokens": int(call.inputs["max_tokens"][0]),
        "stream": True,
    }
    return Exchange(PATH, json.dumps(document).encode())


class BadStream(ValueError):
    """Error for a stream that is not a complete chat completion."""


class Lines(Protocol):
    """A response that is read line by line, and whose lines end with an empty one."""

    def readline(self, sep: bytes) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Completion:
    """A completion: the text, and the times at which its parts arrived. A part is a token, or several."""

    text: str
    tokens_s: tuple[float, ...]

    @property
    def body(self) -> bytes:
        """The response of the model that the line reads as, in the Open Inference Protocol's JSON."""
        output = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [self.text]}
        return json.dumps({"outputs": [output]}).encode()


def read_completion(lines: Lines, clock: Callable[[], float]) -> Completion:
    """Read server-sent events until the response ends. Raises BadStream, and the errors of `lines`."""
    parts: list[str] = []
    tokens_s: list[float] = []
    is_done = False
    while line := lines.readline(b"\n"):
        data = line[len(_DATA) :].strip() if line.startswith(_DATA) else b""
        if data == _DONE:
            is_done = True
        elif data:
            text = _text(data)
            if text:
                parts.append(text)
                tokens_s.append(clock())
    if not is_done:
        raise BadStream("the stream ended before [DONE]")
    if not parts:
        raise BadStream("the stream has no text")
    return Completion("".join(parts), tuple(tokens_s))


def _text(data: bytes) -> str:
    try:
        event: Any = json.loads(data)
        if "error" in event:
            raise BadStream(f"the stream has an error: {event['error']!r:.200}")
        return "".join(str(choice["delta"].get("content") or "") for choice in event["choices"])
    except BadStream:
        raise
    except (ValueError, TypeError, KeyError, AttributeError):
        raise BadStream(f"the stream has an event that is not part of a chat completion: {data!r:.80}") from None
