"""Workloads from requests: encoded before a run starts, so that while it runs the load generator only moves bytes."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from tpuserve_client.model import ModelSpec
from tpuserve_loadtests.requests import Request
from tpuserve_loadtests.workload import Line, Protocol

if TYPE_CHECKING:
    from tpuserve_client.exchange import Exchange

# As encoded, all lines of a run together; one request of each there is, however large.
MAX_REQUESTS_BYTES: Final = 64 * 2**20


def encode_lines(
    names: Sequence[str],
    spec: ModelSpec,
    signature_name: str,
    protocols: Sequence[Protocol],
    requests: Iterable[Request],
    max_bytes: int = MAX_REQUESTS_BYTES,
) -> tuple[Line, ...]:
    """A line for each protocol, all of the same requests: as many as `max_bytes` hold, and one at least.

    Raises what making and encoding requests does: BadInput, InvalidArgument.
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
