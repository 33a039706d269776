"""JSON objects in responses over HTTP."""

import json
from typing import Any


def parse_object(text: bytes) -> dict[str, Any]:
    """Parse a response whose JSON text is an object. Raises ValueError for any other text.

    A server may write bytes that are not UTF-8 into the JSON string of a string tensor. They become lone surrogates.
    """
    try:
        document = json.loads(text.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:  # the latter for thousands of nested brackets
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"not a JSON object: {text[:80]!r}")
    return document
