"""Streamed completions, of chats and of plain prompts, as OpenAI's servers and other language models answer them.

A line of such requests reads as a model with the inputs `prompt` and `max_tokens`, and the output `text`. Its signature
selects the kind of completion.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from tpuserve_client.dtypes import STRING, Array
from tpuserve_client.errors import InvalidArgument
from tpuserve_client.exchange import Exchange, PredictCall
from tpuserve_client.model import DEFAULT_SIGNATURE_NAME, Signature, TensorSpec
from tpuserve_loadtests.requests.distribution import Distribution

_PROMPT: Final = TensorSpec("prompt", STRING, (None,))
_MAX_TOKENS: Final = TensorSpec("max_tokens", np.dtype(np.int32), (None,))
# Path of the requests by signature.
_PATHS: Final = {DEFAULT_SIGNATURE_NAME: "/v1/chat/completions", "completions": "/v1/completions"}
SIGNATURES: Final = {
    name: Signature(name, {"prompt": _PROMPT, "max_tokens": _MAX_TOKENS}, {"text": TensorSpec("text", STRING, (None,))})
    for name in _PATHS
}
MODELS: Final = Exchange("/v1/models", method="GET")
_DATA: Final = b"data:"
_DONE: Final = b"[DONE]"
_REQUESTS: Final = 256
_SEED: Final = 20
_DEFAULT_LENGTHS: Final = {"prompt": 64, "max_tokens": 64}
_WORDS: Final = ("time", "table", "river", "seven", "light", "garden", "between", "stone", "paper", "north")


def prompts(lengths: Mapping[str, Distribution], file: Path | None = None) -> dict[str, Array]:
    """Return the prompts of a file, or random ones. `lengths` are words of random prompts, and `max_tokens`.

    Raises InvalidArgument.
    """
    known = _DEFAULT_LENGTHS if file is None else {"max_tokens": _DEFAULT_LENGTHS["max_tokens"]}
    if unknown := lengths.keys() - known:
        wanted = "prompt=WORDS or max_tokens=TOKENS" if file is None else "max_tokens=TOKENS"
        raise InvalidArgument(f"--length needs {wanted}, not {min(unknown) or 'a length'}.")
    given = [] if file is None else _read_prompts(file)
    count, random = len(given) or _REQUESTS, np.random.default_rng(_SEED)
    drawn = {
        name: lengths[name].draw(count, random) if name in lengths else np.full(count, default)
        for name, default in known.items()
    }
    texts = [text for text, _ in given] or [" ".join(random.choice(_WORDS, int(words))) for words in drawn["prompt"]]
    limits = drawn["max_tokens"]
    for number, (_, limit) in enumerate(given):
        limits[number] = limits[number] if limit is None else limit
    return {"prompt": np.array([text.encode() for text in texts], STRING), "max_tokens": limits.astype(np.int32)}


def _read_prompts(file: Path) -> list[tuple[str, int | None]]:
    """Return each prompt with its own limit of tokens, if any. A line is a prompt or a JSON object."""
    found: list[tuple[str, int | None]] = []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise InvalidArgument(f"{file} is not a text file in UTF-8.") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            document = json.loads(line) if line.startswith("{") else {"prompt": line}
            limit = document.get("max_tokens")
            found.append((str(document["prompt"]), None if limit is None else int(limit)))
        except (ValueError, TypeError, KeyError):
            raise InvalidArgument(
                f'{file}, line {number}: not a JSON object such as {{"prompt": "Why?", "max_tokens": 64}}.'
            ) from None
    if not found:
        raise InvalidArgument(f"{file} has no prompts.")
    return found


def completion_request(call: PredictCall) -> Exchange:
    """Encode a request with one prompt. Raises InvalidArgument for several."""
    if len(call.inputs["prompt"]) != 1:
        raise InvalidArgument("A request of OpenAI's API has one prompt. Omit --rows.")
    name, prompt = call.signature_name or DEFAULT_SIGNATURE_NAME, call.inputs["prompt"][0].decode(errors="replace")
    is_chat = name == DEFAULT_SIGNATURE_NAME
    document = {
        "model": call.spec.name,
        **({"messages": [{"role": "user", "content": prompt}]} if is_chat else {"prompt": prompt}),
        "max_tokens": int(call.inputs["max_tokens"][0]),
        "stream": True,
    }
    return Exchange(_PATHS[name], json.dumps(document).encode())


class BadStream(ValueError):
    """Error for a stream that is not a complete completion."""


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
        texts = (choice["text"] if "text" in choice else choice["delta"].get("content") for choice in event["choices"])
        return "".join(str(text or "") for text in texts)
    except BadStream:
        raise
    except (ValueError, TypeError, KeyError, AttributeError):
        raise BadStream(f"the stream has an event that is not part of a completion: {data!r:.80}") from None
