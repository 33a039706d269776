"""Bytes that the server copies for a large tensor between the socket and the model, in copies of the tensor.

`copy_counter.c` counts them in the server's process, and describes the copies that it cannot see. The same requests to
an application that drops the chunks of a body show the copies of the host, h2corn.
"""

import os
import struct
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.harness.measurement import WrongAnswer
from benchmarks.harness.targets import Target, asgi_server, free_port, is_open, model_server, wait_until_ready
from benchmarks.large import edge_model
from benchmarks.large.ways import FLAG, Way, ways
from benchmarks.overhead.call_turns import check_call, transport_of
from tpuserve_client.errors import TpuserveError

if TYPE_CHECKING:
    from tpuserve_client.exchange import Transport

# The table of copy_counter.c: rows of a name and a number of bytes.
_ROW: Final = struct.Struct("56sQ")
_ROWS: Final = 64
_REQUESTS: Final = 20
_TIMEOUT_S: Final = 60.0
# Rows of copies from the kernel, such as those from shared memory.
_KERNEL: Final = "kernel"
_DROP: Final = "benchmarks.harness.sink_asgi:drop"


class CounterFailed(RuntimeError):
    """The counter cannot be compiled. The message ends with the compiler's output."""


@dataclass(frozen=True, slots=True)
class CopyCount:
    """Copies of the tensor in a request of a way and a size.

    `host` are those of h2corn, from its socket to the chunks of a body. `kernel` are those from shared memory. `server`
    are all others: of the interpreter, of numpy and of the runtime.
    """

    name: str
    size: str
    server: float
    host: float
    kernel: float


def measure(base: Path, scratch: Path, progress: Callable[[str], None]) -> list[CopyCount]:
    """Count the copies of each way and size, with one request in flight.

    Raises ServerDied, WrongAnswer and CounterFailed.
    """
    counter, found, port = _compiled(scratch), [], free_port()
    tables = [_table(scratch, name) for name in ("server", "drop")]
    environments = [{"LD_PRELOAD": str(counter), "COPY_COUNTS": str(table)} for table in tables]
    with (
        model_server(base, scratch, FLAG, name=edge_model.NAME, environment=environments[0]) as server,
        asgi_server(_DROP, port, scratch / "drop.log", environment=environments[1]) as drop,
        ways(server["rest"].port) as listed,
    ):
        wait_until_ready(Target("echo", "rest", port, drop), is_open)
        for way in listed:
            call = way.call
            progress(f"copies of {call.name}, {call.size}")
            own_port = server[call.protocol].port
            # Requests with a new layout take a longer way.
            for _ in range(_REQUESTS):
                check_call(call, own_port)
            ours, host = (_count(way, each, table) for each, table in zip((own_port, port), tables, strict=True))
            kernel, of_host = ours.pop(_KERNEL, 0.0), sum(host.values())
            found.append(CopyCount(call.name, call.size, sum(ours.values()) - of_host, of_host, kernel))
        server["rest"].tree.check_alive()
    return found


def _table(scratch: Path, name: str) -> Path:
    table = scratch / f"{name}.copies"
    table.write_bytes(bytes(_ROW.size * _ROWS))
    return table


def _count(way: Way, port: int, table: Path) -> dict[str, float]:
    """Return the copies of the tensor in a request, by library."""
    with closing(transport_of(way.call, port)) as transport:
        _send(transport, way)
        before = _read(table)
        for _ in range(_REQUESTS):
            _send(transport, way)
        after = _read(table)
    return {name: (bytes_ - before.get(name, 0)) / _REQUESTS / way.tensor_bytes for name, bytes_ in after.items()}


def _send(transport: "Transport", way: Way) -> None:
    try:
        transport.send(way.call.exchange, _TIMEOUT_S)
    except TpuserveError as error:
        raise WrongAnswer(f"{way.call.name} of {way.call.size}: {error!r}") from error


def _read(table: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, size_bytes in _ROW.iter_unpack(table.read_bytes()):
        text = name.rstrip(b"\0").decode()
        if text:
            found[text] = found.get(text, 0) + size_bytes
    return found


def _compiled(scratch: Path) -> Path:
    target = scratch / "copy_counter.so"
    # The compiler must not replace the loops of memcpy by calls of memcpy.
    options = ("-O2", "-fno-builtin", "-fno-tree-loop-distribute-patterns", "-shared", "-fPIC")
    command = ["gcc", *options, "-o", str(target), str(Path(__file__).with_name("copy_counter.c"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    if done.returncode:
        raise CounterFailed(f"gcc did not compile the counter:\n{done.stderr[-800:]}")
    return target
