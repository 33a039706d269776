"""Golden parity: the same requests to two versions of a model, and how far apart their answers are."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tpuserve_client.dtypes import STRING, Array, describe
from tpuserve_client.errors import TpuserveError
from tpuserve_client.exchange import Exchange, PredictCall, Reply
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec, Signature


@dataclass(frozen=True, slots=True)
class Tolerance:
    """|b - a| <= atol + rtol |a| is the same."""

    atol: float
    rtol: float

    def __str__(self) -> str:
        return f"{self.atol:g} + {self.rtol:g} of the value"


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of one version, encoded. Those of both versions go in the same order."""

    spec: ModelSpec
    exchanges: tuple[Exchange, ...]


def signature_difference(a: Signature, b: Signature) -> str:
    """How the second differs from the first in what clients see of it; nothing if it does not."""
    for what, mine, theirs in (("input", a.inputs, b.inputs), ("output", a.outputs, b.outputs)):
        if mine.keys() != theirs.keys():
            return f"{what}s are {sorted(theirs)}, were {sorted(mine)}"
        for name, spec in mine.items():
            if (spec.dtype, spec.shape) != (theirs[name].dtype, theirs[name].shape):
                return f"{what} is {theirs[name]}, was {spec}"
    return ""


def differences(send: Callable[[Exchange], Reply], a: Requests, b: Requests, tolerance: Tolerance) -> Iterator[str]:
    """For each request, sent to A and then to B: how B's answer differs, in words, or nothing. Blocks for each."""
    for number, (of_a, of_b) in enumerate(zip(a.exchanges, b.exchanges, strict=True)):
        answers = []
        for spec, exchange in ((a.spec, of_a), (b.spec, of_b)):
            try:
                reply = send(exchange)
                answers.append(GrpcWire().read_prediction(reply, PredictCall(spec, {}), None).outputs)
            except TpuserveError as error:
                yield f"request {number}: {spec}: {error.code.name}: {error.message}"
                break
        if len(answers) == 2:
            found = _difference(answers[0], answers[1], tolerance)
            yield f"request {number}: {found}" if found else ""


def _difference(a: Mapping[str, Array], b: Mapping[str, Array], tolerance: Tolerance) -> str:
    if a.keys() != b.keys():
        return f"outputs are {sorted(b)}, were {sorted(a)}"
    found = (_array_difference(name, a[name], b[name], tolerance) for name in a)
    return next(filter(None, found), "")


def _array_difference(name: str, a: Array, b: Array, tolerance: Tolerance) -> str:
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"output {name} is {describe(b.dtype)}{list(b.shape)}, was {describe(a.dtype)}{list(a.shape)}"
    if a.dtype == STRING or a.dtype.kind in "iub":
        same, allowed = np.asarray(a == b), "no difference"
    else:
        # bfloat16 and its kind are compared as what they are worth.
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        same = np.isclose(b.astype(wide), a.astype(wide), rtol=tolerance.rtol, atol=tolerance.atol, equal_nan=True)
        allowed = f"{tolerance}"
    if same.all():
        return ""
    where = tuple(int(index) for index in np.argwhere(~same)[0])
    return f"output {name} at {list(where)} is {b[where]!s:.40}, was {a[where]!s:.40}; allowed is {allowed}"
