"""Sends one large body again and again over one connection, as a separate process. Its work delays no other client.

Run: `python benchmarks/large/sender.py PORT PATH FILE`. SIGTERM stops it; it then prints the number of its responses.
"""

import http.client
import signal
import sys
from pathlib import Path
from types import FrameType

_TIMEOUT_S = 60.0


class _Stopped(Exception):
    pass


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise _Stopped


def send(port: int, path: str, body: bytes) -> int:
    """Send `body` until SIGTERM. Return the number of responses. Raises RuntimeError for a status other than 200."""
    responses = 0
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        signal.signal(signal.SIGTERM, _stop)
        while True:
            connection.request("POST", path, body, {"content-type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
            if response.status != 200:
                raise RuntimeError(f"{path} answered {response.status}: {answer[:200]!r}")
            responses += 1
    except _Stopped:
        return responses
    finally:
        connection.close()


if __name__ == "__main__":
    print(send(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]).read_bytes()))
