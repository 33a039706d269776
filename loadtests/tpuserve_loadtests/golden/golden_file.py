"""Golden answers from a file of requests and the expected responses."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

from tpuserve_client.dtypes import Array
from tpuserve_client.model import Signature
from tpuserve_loadtests.requests.arrays import UNREADABLE, BadInput, arrays_in, fitted, has_rows, load_numpy

_INPUTS: Final = "inputs/"
_OUTPUTS: Final = "outputs/"
_SUFFIXES: Final = (".npz", ".json")

_Json: TypeAlias = Any  # the result of json.loads, which the code below validates


@dataclass(frozen=True, slots=True, eq=False)  # a comparison of arrays has no single truth value
class GoldenRows:
    """Arrays by input and by output name, in the model's dtypes.

    All arrays have the same number of rows if the model has rows.
    """

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]

    @classmethod
    def read(cls, path: Path, signature: Signature) -> Self:
        """Read `.npz` with inputs and outputs, or `.json` with a TensorFlow Serving request and its response.

        A name that is both an input and an output is written `inputs/NAME` and `outputs/NAME`. Raises BadInput.
        """
        if path.suffix not in _SUFFIXES:
            raise BadInput(f"{path} is not a file of golden responses. Set a {' or '.join(_SUFFIXES)} file, or record.")
        of_outputs = replace(signature, inputs=signature.outputs)
        try:
            if path.suffix == ".json":
                inputs, outputs = _from_json(json.loads(path.read_text(encoding="utf-8")), signature, of_outputs)
            else:
                inputs, outputs = _from_npz(path, signature, of_outputs)
        except UNREADABLE as error:
            raise BadInput(f"{path}: {error}") from None
        rows = cls(inputs, outputs)
        rows._check_rows(path, signature)
        return rows

    def _check_rows(self, path: Path, signature: Signature) -> None:
        arrays = [*self.inputs.items(), *self.outputs.items()]
        lengths = [(name, array.shape[:1]) for name, array in arrays]
        if has_rows(signature) and len({length for _, length in lengths}) > 1:
            shown = ", ".join(f"{name} {length[0] if length else 'none'}" for name, length in lengths)
            raise BadInput(f"{path}: inputs and outputs need the same number of rows, received {shown}")


def _from_npz(path: Path, signature: Signature, of_outputs: Signature) -> tuple[dict[str, Array], dict[str, Array]]:
    found = load_numpy(path)
    if not isinstance(found, dict):
        raise BadInput("expected inputs and outputs by name, received one array")
    inputs = {name.removeprefix(_INPUTS): array for name, array in found.items() if _is_input(name, signature)}
    outputs = {name.removeprefix(_OUTPUTS): array for name, array in found.items() if not _is_input(name, signature)}
    with _named("inputs"):
        of_request = fitted(inputs, signature)
    with _named("outputs"):
        return of_request, fitted(outputs, of_outputs)


def _is_input(name: str, signature: Signature) -> bool:
    return name.startswith(_INPUTS) or (name in signature.inputs and not name.startswith(_OUTPUTS))


def _from_json(
    document: _Json, signature: Signature, of_outputs: Signature
) -> tuple[dict[str, Array], dict[str, Array]]:
    for request_key, response_key in (("inputs", "outputs"), ("instances", "predictions")):
        if isinstance(document, dict) and request_key in document and response_key in document:
            # A response has the format of a request with different keys.
            with _named(request_key):
                inputs = fitted(arrays_in({request_key: document[request_key]}, signature), signature)
            with _named(response_key):
                return inputs, fitted(arrays_in({request_key: document[response_key]}, of_outputs), of_outputs)
    raise BadInput('expected an object with "inputs" and "outputs", or "instances" and "predictions"')


@contextmanager
def _named(kind: str) -> Iterator[None]:
    """Add the kind of the arrays to errors."""
    try:
        yield
    except ValueError as error:
        raise BadInput(f"{kind}: {error}") from None
