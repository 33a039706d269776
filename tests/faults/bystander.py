"""A client in another process that sends good requests while a test attacks the server, and measures their latency.

Usage: `bystander.py ADDRESS PATH BODY RESPONSE PAUSE`, with the address `host:port`. It sends until its standard
input closes, and then prints a JSON object. It needs no package, so it starts in milliseconds.
"""

import http.client
import json
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

TIMEOUT_S = 120


@dataclass
class Bystander:
    """The running process; after the context, its counts. `wrong` holds failures and wrong responses."""

    address: str
    path: str
    body: str
    response: str
    # Pause between two requests, so that the client takes little of the CPU.
    pause_s: float
    answered: int = 0
    worst_ms: float = 0.0
    wrong: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        command = [sys.executable, "-S", __file__, self.address, self.path, self.body, self.response, str(self.pause_s)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "sending\n"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        output, _ = self._process.communicate()
        counts = json.loads(output)
        self.answered, self.worst_ms, self.wrong = counts["answered"], counts["worst_ms"], tuple(counts["wrong"])


def _send(address: str, path: str, body: str, response: str, pause_s: str) -> None:
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    worst_s, answered, wrong = 0.0, 0, []
    stdin = select.poll()
    stdin.register(sys.stdin, select.POLLIN)
    while not stdin.poll(float(pause_s) * 1000 if answered else 0):
        start = time.perf_counter()
        try:
            connection.request("POST", path, body)
            got = connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException) as error:
            got = repr(error)
            connection.close()
        worst_s = max(worst_s, time.perf_counter() - start)
        if got != response:
            wrong.append(got)
        if not answered:
            print("sending", flush=True)
        answered += 1
    print(json.dumps({"answered": answered, "worst_ms": worst_s * 1000, "wrong": wrong}))


if __name__ == "__main__":
    _send(*sys.argv[1:])
