"""A server that follows a script and logs every prediction. It speaks gRPC and REST on free loopback ports.

It runs in its own process, `python -m tests.loadtests.truth.scripted_server LOG < SCRIPT`, so that neither the load
generator nor the tests delay it. It prints its ports, serves until its standard input ends, and then writes the log.
"""

import asyncio
import gc
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.loadtests.truth.desk import Desk, end_pending
from tests.loadtests.truth.http1 import RestConnection
from tests.loadtests.truth.http2 import GrpcConnection
from tests.loadtests.truth.request_log import Log
from tests.loadtests.truth.script import Fault, Script

_ROOT = Path(__file__).resolve().parents[3]
_LOCAL = "127.0.0.1"
_BACKLOG = 4096


@dataclass
class ScriptedServer:
    """A running server. `log` is complete after `end`."""

    script: Script
    process: "subprocess.Popen[str]"
    log_path: Path
    grpc: str
    rest: str
    log: Log = field(default_factory=lambda: Log(()))

    def end(self) -> Log:
        """End the process and return its log. Further calls return the same log."""
        if self.process.returncode is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            assert self.process.wait() == 0
            self.log = Log.read(self.log_path)
        return self.log


@contextmanager
def serving(script: Script) -> Iterator[ScriptedServer]:
    """Serve for the block."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log.jsonl")
        command = [sys.executable, "-m", "tests.loadtests.truth.scripted_server", str(log)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, cwd=_ROOT
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{script.to_json()}\n")
            ports = json.loads(process.stdout.readline())
            server = ScriptedServer(
                script, process, log, f"{_LOCAL}:{ports['grpc']}", f"http://{_LOCAL}:{ports['rest']}"
            )
            try:
                yield server
            finally:
                server.end()


async def _serve(script: Script) -> Log:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    desk = Desk(script, loop, ended.set)
    numbers = itertools.count(1)
    sides: dict[str, Callable[[], asyncio.Protocol]] = {
        "grpc": lambda: GrpcConnection(next(numbers), desk, script),
        "rest": lambda: RestConnection(next(numbers), desk, script),
    }
    ports = {}
    for name, connection in sides.items():
        listener = await loop.create_server(connection, _LOCAL, 0, backlog=_BACKLOG)
        ports[name] = listener.sockets[0].getsockname()[1]
    loop.add_reader(sys.stdin, ended.set)  # readable at its end, because the script was its only content
    # A collection of the imported modules would delay a response by milliseconds.
    gc.collect()
    gc.freeze()
    print(json.dumps(ports), flush=True)
    await ended.wait()
    end_pending(desk.entries, Fault.CUT)
    return Log(tuple(desk.entries))


def main() -> None:
    """Serve until standard input or the script ends. The end of the process ends its connections."""
    script = Script.from_json(sys.stdin.readline())
    log = asyncio.run(_serve(script))
    log.write(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
