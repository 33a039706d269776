"""Reference for our load generator: plain Locust as in its documentation, one user class per protocol.

loadgen.py runs it: `LOADGEN_SECONDS=5 locust -f benchmarks/loadgen/plain.py --headless -u 32 -r 32 --host
127.0.0.1:PORT GrpcUser`. The warm-up of one second begins when there are as many responses as users. The run then
measures for LOADGEN_SECONDS, prints a line of JSON (its requests, failures, seconds and CPU seconds), and ends.

A file of authorities in LOADGEN_CA enables TLS. For HTTP, --host is then https://…; Locust does not verify its
certificate.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import gevent
import grpc
import grpc.experimental.gevent as grpc_gevent
from locust import FastHttpUser, User, constant, events, task

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.harness.targets import GRPC_PATH, REST_PATH
from benchmarks.loadgen.body import grpc_answer, rest_answer

grpc_gevent.init_gevent()

WARM_UP_S = 1.0
SECONDS = float(os.environ["LOADGEN_SECONDS"])
_channels: dict[str, grpc.Channel] = {}


def _channel(address: str) -> grpc.Channel:
    ca = os.environ.get("LOADGEN_CA")
    if not ca:
        return grpc.insecure_channel(address)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(Path(ca).read_bytes()))


class GrpcUser(User):  # type: ignore[misc]  # Locust ships no annotations
    """A user that sends the next request after each response. All users share one channel and an encoded message."""

    wait_time = constant(0)

    def __init__(self, environment: Any) -> None:  # noqa: ANN401  # Locust ships no annotations
        super().__init__(environment)
        if self.host not in _channels:
            _channels[self.host] = _channel(self.host)
        channel = _channels[self.host]
        self._call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(GRPC_PATH)
        self._body = grpc_answer()

    @task  # type: ignore[untyped-decorator]  # Locust ships no annotations
    def predict(self) -> None:
        """Send one request, and report it to Locust as in its documentation."""
        start_s = time.perf_counter()
        length, error = 0, None
        try:
            length = len(self._call(self._body))
        except grpc.RpcError as caught:
            error = caught
        self.environment.events.request.fire(
            request_type="grpc",
            name="predict",
            response_time=(time.perf_counter() - start_s) * 1000,
            response_length=length,
            response=None,
            context={},
            exception=error,
        )


class RestUser(FastHttpUser):  # type: ignore[misc]  # Locust ships no annotations
    """A user that sends the next request after each response, on its own connection."""

    wait_time = constant(0)
    _body = rest_answer()
    _headers = {"content-type": "application/json"}  # noqa: RUF012  # Locust's attributes are the class's

    @task  # type: ignore[untyped-decorator]  # Locust ships no annotations
    def predict(self) -> None:
        """Send one request."""
        self.client.post(REST_PATH, data=self._body, headers=self._headers)


@events.test_start.add_listener  # type: ignore[untyped-decorator]  # Locust ships no annotations
def _measure(environment: Any, **_: object) -> None:  # noqa: ANN401  # Locust ships no annotations
    total = environment.stats.total

    def now() -> tuple[int, int, float, float]:
        return total.num_requests, total.num_failures, time.perf_counter(), time.process_time()

    def measure() -> None:
        # Locust starts the clock of --run-time before its users. On a busy machine no measured time may be left.
        while total.num_requests < environment.parsed_options.num_users:
            gevent.sleep(0.05)
        gevent.sleep(WARM_UP_S)
        before = now()
        gevent.sleep(SECONDS)
        names = ("requests", "failures", "seconds", "cpu_s")
        figures = (after - start for after, start in zip(now(), before, strict=True))
        print("RESULT", json.dumps(dict(zip(names, figures, strict=True))))
        environment.runner.quit()

    gevent.spawn(measure)
