"""Requests of Locust's users over the load test's connections: the Python client, and encoded payloads.

The process must call give_process_to_gevent (gevent_setup) before it imports this module.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import count
from typing import Any, Final, TypeVar

import gevent
from locust.exception import RescheduleTask

from tpuserve_client import Client, Retry
from tpuserve_client.address import Address
from tpuserve_client.client import Inputs
from tpuserve_client.connections import Connections as Transports
from tpuserve_client.core import OWN_TIMEOUT
from tpuserve_client.errors import InvalidArgument, TpuserveError
from tpuserve_client.exchange import Exchange, PredictCall, Priority, Reply, Wire
from tpuserve_client.model import Metadata, ModelSpec, Prediction, TensorSpec
from tpuserve_client.names import output_names
from tpuserve_client.request_headers import HeaderValue
from tpuserve_loadtests.access import Access
from tpuserve_loadtests.golden.answers import AnswerChecks
from tpuserve_loadtests.golden.form import check_arrays
from tpuserve_loadtests.measurement.recorder import Delivery
from tpuserve_loadtests.requests.protocols import TITLES, Protocol
from tpuserve_loadtests.requests.wires import WIRES
from tpuserve_loadtests.requests.workload import Turns
from tpuserve_loadtests.traffic.senders import Connections, GrpcTransport, HttpTransport, Sender
from tpuserve_loadtests.traffic.target import Target

_ONCE: Final = Retry(max_attempts=1)
# Distance between the first payloads of two workers, so that each starts elsewhere in the sequence.
_WORKERS_APART: Final = 104_729
_Result = TypeVar("_Result")


class RequestFailed(RescheduleTask):  # type: ignore[misc]  # Locust ships no annotations
    """A failed request of a user, which Locust's statistics already count. `error` is its cause.

    A task that does not catch it ends, and the user continues with its next task after `wait_time`.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Abandoned(Exception):
    """Error for a request without a response whose user ended, or whose task ended it with a timeout of its own."""

    def __init__(self, age_s: float) -> None:
        super().__init__(f"abandoned without a response after {age_s:.3g} s")


@dataclass(slots=True)
class _Sent:
    """A request of a user: path, delivery, and the time and size of its response, without encoding and decoding."""

    path: str = ""
    start_s: float = 0.0
    latency_s: float = 0.0
    size_bytes: int | None = None
    delivery: Delivery = field(default_factory=Delivery)

    def measure(self, send: Callable[[Delivery], Reply]) -> Reply:
        self.start_s = time.perf_counter()
        try:
            reply = send(self.delivery)
            self.size_bytes = len(reply.body)
            return reply
        finally:
            self.latency_s = time.perf_counter() - self.start_s
            # Users whose responses arrived together note their times before any of them decodes its response.
            gevent.sleep(0)


@lru_cache(maxsize=1024)
def _path(protocol: Protocol, spec: ModelSpec) -> str:
    return WIRES[protocol].predict(PredictCall(spec, {})).path


# Each greenlet has its own context, so concurrent users do not share this variable.
_sent: ContextVar[_Sent | None] = ContextVar("_sent", default=None)


class _Measured:
    """A transport that measures the request of the current call. It does not measure requests for metadata."""

    def __init__(self, transport: GrpcTransport | HttpTransport) -> None:
        self._transport = transport

    def close(self) -> None:
        """Leave the connections to their owner."""

    def send(self, exchange: Exchange, timeout_s: float | None) -> Reply:
        sent = _sent.get()
        if sent is None or exchange.path != sent.path:
            return self._transport.send(exchange, timeout_s)
        return sent.measure(partial(self._transport.send, exchange, timeout_s))


class _ServerClient(Client):
    """A Python client for all users of a process that use one address. It sends each request once."""

    def __init__(self, protocol: Protocol, address: str, connections: Connections) -> None:
        self._protocol, self._load = protocol, connections
        # The connections have the headers and the timeout.
        super().__init__(address, timeout_s=None, retry=_ONCE)

    def _make_connections(self) -> Transports:
        transport = _Measured(self._load.transport(self._protocol))
        return Transports(lambda _: transport)

    def _make_wire(self, place: Address) -> Wire:
        return WIRES[self._protocol]


class Service:
    """The servers of a class of users in a run: connections, and payloads in order. Belongs to one thread."""

    def __init__(
        self,
        addresses: Mapping[Protocol, str],
        access: Access,
        timeout_s: float,
        connections: int | None,
        target: Target | None,
        worker: int,
    ) -> None:
        """Set up the connections. `target` has the encoded payloads, if any. Raises InvalidArgument."""
        self.protocols, self.timeout_s = tuple(addresses), timeout_s
        opened = Connections(addresses, access, timeout_s, connections)
        self.clients = {item[0]: _ServerClient(*item, opened) for item in addresses.items()}
        lines = () if target is None else target.workload.lines
        self._senders = tuple(opened.sender(line) for line in lines)
        self.checks = None if target is None else AnswerChecks(lines, target.checks, worker)
        self._turns = Turns(target.workload.order) if target is not None and target.workload.order else None
        self._outputs: dict[tuple[Protocol, ModelSpec, str | None], Mapping[str, TensorSpec]] = {}
        self._numbers = count(max(worker, 0) * _WORKERS_APART)
        self.close = opened.close

    def outputs(self, protocol: Protocol, spec: ModelSpec, signature_name: str | None) -> Mapping[str, TensorSpec]:
        """Return the outputs of a signature. They are empty if the server does not describe the model."""
        key = protocol, spec, signature_name
        if key not in self._outputs:
            self._outputs[key] = {}
            with suppress(TpuserveError):
                found = self.clients[protocol].metadata(
                    spec.name, version=spec.version, label=spec.label, timeout_s=self.timeout_s
                )
                self._outputs[key] = found.signature(signature_name).outputs
        return self._outputs[key]

    def next_payload(self, user: int) -> tuple[Sender, int]:
        """Return the sender and number of the next payload. Without an order of lines, a user stays on its line.

        Raises TypeError without payloads.
        """
        if not self._senders:
            raise TypeError("the class of this user has no payloads. Set its attributes model and payloads")
        number = next(self._numbers)
        if self._turns is None:
            return self._senders[user % len(self._senders)], number
        line, turn = self._turns.at(number)
        return self._senders[line], turn


class PredictClient:
    """The client of one user. Its calls block the user's greenlet."""

    def __init__(self, service: Service, user: Any) -> None:  # noqa: ANN401  Locust ships no annotations
        self._service, self._user = service, user
        self._protocol = service.protocols[user.number % len(service.protocols)]
        self._client = service.clients[self._protocol]

    def predict(
        self,
        model: str,
        inputs: Inputs,
        *,
        version: int | None = None,
        label: str | None = None,
        signature_name: str | None = None,
        output_filter: Sequence[str] = (),
        priority: Priority | None = None,
        timeout_s: float | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        name: str | None = None,
        check: Callable[[Prediction], object] | None = None,
    ) -> Prediction:
        """Run a model like `tpuserve_client.Client.predict`, and fire Locust's request event.

        The event's name is `name`, by default the model with its version or label. Its response time covers the request
        and the response, without encoding, decoding and the first request for the model's metadata. The client sends
        the request once. `timeout_s` is at most --request-timeout, the default.

        A response whose names, dtypes or dimensions differ from the model's metadata counts as failed. `check` receives
        the prediction. If it raises an exception, such as AssertionError, the request counts as failed, too. Raises
        RequestFailed if the request failed, for every reason.
        """
        spec = ModelSpec(model, version, label)

        def run(_: _Sent) -> Prediction:
            prediction = self._client.predict(
                model,
                inputs,
                version=version,
                label=label,
                signature_name=signature_name,
                output_filter=output_filter,
                priority=priority,
                timeout_s=OWN_TIMEOUT if timeout_s is None else self._checked(timeout_s),
                headers=headers,
            )
            outputs = self._service.outputs(self._protocol, spec, signature_name)
            check_arrays(
                prediction.outputs,
                {name: outputs[name] for name in output_names(output_filter) or outputs if name in outputs},
            )
            if check is not None:
                check(prediction)
            return prediction

        return self._send(_Sent(_path(self._protocol, spec)), self._protocol, name or str(spec), run)

    def send_payload(self, name: str | None = None) -> None:
        """Send the next payload of the user's class, and fire Locust's request event.

        The checks of the class decide whether the response is right. Nothing else decodes it. The event's name is
        `name`, by default that of the payload's line. Raises RequestFailed.
        """
        sender, turn = self._service.next_payload(self._user.number)
        line, checks = sender.line, self._service.checks

        def run(sent: _Sent) -> None:
            reply = sent.measure(partial(sender.send, turn))
            if checks is not None:
                checks.check(line, turn, reply, sent.start_s + sent.latency_s, sent.delivery)

        self._send(_Sent(), line.protocol, name or line.name, run)

    def metadata(self, model: str, *, version: int | None = None, label: str | None = None) -> Metadata:
        """Return the model's signatures, as `tpuserve_client.Client.metadata` does. Locust does not count the request.

        Raises TpuserveError.
        """
        return self._client.metadata(model, version=version, label=label, timeout_s=self._service.timeout_s)

    def _send(self, sent: _Sent, protocol: Protocol, name: str, run: Callable[[_Sent], _Result]) -> _Result:
        """Run a request, and fire its event. Raises RequestFailed, or the exception that ended the user or its task."""
        if self._user.is_ended:  # Locust's exception arrives now, and not in the request
            self._user.is_ended = False  # `on_stop` may send requests
            gevent.sleep(0)
        token = _sent.set(sent)
        try:
            result = run(sent)
        except Exception as error:  # any error is the outcome of this request
            self._fire(sent, protocol, name, error)
            raise RequestFailed(error) from error
        except BaseException:  # Locust ends the user, or a gevent.Timeout ends the task
            if sent.start_s:
                self._fire(sent, protocol, name, None if sent.size_bytes else Abandoned(sent.latency_s))
            raise
        finally:
            _sent.reset(token)
        self._fire(sent, protocol, name, None, result)
        return result

    def _fire(
        self, sent: _Sent, protocol: Protocol, name: str, error: Exception | None, response: object = None
    ) -> None:
        self._user.environment.events.request.fire(
            request_type=TITLES[protocol],
            name=name,
            response_time=sent.latency_s * 1000,
            response_length=sent.size_bytes or 0,
            response=response,
            context=dict(self._user.context()),
            exception=error,
            start_time=time.time() - sent.latency_s,
            url=sent.path,
            retries=sent.delivery.retries,
            compared=sent.delivery.compared,
            delivery=sent.delivery,
        )

    def _checked(self, timeout_s: float) -> float:
        if timeout_s > self._service.timeout_s:
            raise InvalidArgument(
                f"timeout_s is {timeout_s:g}, more than --request-timeout, {self._service.timeout_s:g} s. Set "
                "--request-timeout to the longest timeout of the scenario."
            )
        return timeout_s
