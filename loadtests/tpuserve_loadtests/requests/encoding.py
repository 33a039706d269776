"""Encoding of requests before a run, so that the load generator only moves bytes during the run."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from tpuserve_client.model import ModelSpec
from tpuserve_loadtests.requests.arrays import Request
from tpuserve_loadtests.requests.protocols import Protocol
from tpuserve_loadtests.requests.workload import Line

if TYPE_CHECKING:
    from tpuserve_client.exchange import Exchange

# Limit for the encoded requests of all lines together. Every line keeps at least one request of any size.
MAX_REQUESTS_BYTES: Final = 64 * 2**20


def encode_lines(
    names: Sequence[str],
    spec: ModelSpec,
    signature_name: str,
    protocols: Sequence[Protocol],
    requests: Iterable[Request],
    max_bytes: int = MAX_REQUESTS_BYTES,
) -> tuple[Line, ...]:
    """Return a line for each protocol, with the same requests.

    The lines hold at most `max_bytes` of requests together, and at least one request each. Raises BadInput or
    InvalidArgument.
    """
    encoded: list[tuple[Exchange, ...]] = []
    rows: list[int] = []
    golden: list[bytes] = []
    size_bytes = 0
    for request in requests:
        exchanges = tuple(request.exchange(spec, protocol) for protocol in protocols)
        size_bytes += sum(len(exchange.body) for exchange in exchanges)
        if encoded and size_bytes > max_bytes:
            break
        encoded.append(exchanges)
        rows.append(request.rows)
        golden.append(request.golden)
    known = tuple(golden) if all(golden) else ()
    return tuple(
        Line(name, protocol, spec, signature_name, of_protocol, tuple(rows), known)
        for name, protocol, of_protocol in zip(names, protocols, zip(*encoded, strict=True), strict=True)
    )
