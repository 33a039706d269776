"""The upstream behind the faults: the tests' model server, also as a separate process, and a model that waits.

A separate process keeps the server's threads and CPU time out of a client that forks or is measured.
"""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.clients.model_server import Arrays, ModelServer, run_model, serving
from tests.support.certificates import Authority, ServerTls

MODULE = "tests.clients.faults.scripted_upstream"
ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Upstream:
    """A model server in this process, its addresses by protocol and TLS, and the authority of its certificate."""

    server: ModelServer
    addresses: Mapping[tuple[str, bool], str]
    ca: Path


@contextmanager
def upstream(folder: Path) -> Iterator[Upstream]:
    """Serve one model server over gRPC and REST, with and without TLS. `folder` is for the certificates."""
    server, authority = ModelServer(), Authority(folder)
    with ExitStack() as stack:
        addresses = {
            (protocol, is_tls): stack.enter_context(
                serving(server, protocol, ServerTls(authority.server) if is_tls else None)
            )
            for protocol in ("grpc", "rest")
            for is_tls in (False, True)
        }
        yield Upstream(server, addresses, authority.ca)


class FirstWaits(threading.Event):
    """A gate for `ModelServer.gate` that holds the first prediction until `release`, up to 30 s, and no other."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self.started = threading.Event()
        self.release = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        with self._lock:
            is_first = not self.started.is_set()
            self.started.set()
        return self.release.wait(30) if is_first else True


class UpstreamProcess:
    """A model server in a separate process. `addresses` has its address for "grpc" and "rest"."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.addresses: dict[str, str] = self._read()

    def executed(self) -> Counter[str]:
        """Return the number of requests by method since the last call of `executed`."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Counter(self._read())

    def _read(self) -> dict[str, str]:
        assert self._process.stdout is not None
        document: dict[str, str] = json.loads(self._process.stdout.readline())
        return document


@contextmanager
def upstream_process(prediction_s: float = 0.0) -> Iterator[UpstreamProcess]:
    """Start a server as a process whose predictions take `prediction_s` seconds, and stop it at exit."""
    command = [sys.executable, "-m", MODULE, str(prediction_s)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield UpstreamProcess(process)
        assert process.stdin is not None
        process.stdin.close()


def main(prediction_s: float) -> None:
    def run(name: str, inputs: Arrays) -> Arrays:
        time.sleep(prediction_s)
        return run_model(name, inputs)

    server = ModelServer()
    server.run = run
    with serving(server, "grpc") as grpc_place, serving(server, "rest") as rest_place:
        print(json.dumps({"grpc": grpc_place, "rest": rest_place}), flush=True)
        for _ in sys.stdin:
            methods = Counter(server.methods())
            server.served.clear()
            print(json.dumps(methods), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
