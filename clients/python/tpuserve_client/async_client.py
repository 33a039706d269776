"""The client for asyncio."""

import asyncio
import inspect
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from tpuserve_client.async_connections import AsyncConnections
from tpuserve_client.attempts import Attempt
from tpuserve_client.client import Inputs
from tpuserve_client.core import OWN_TIMEOUT, ClientCore, Timeout, make_async_transport
from tpuserve_client.credentials import ApiKey
from tpuserve_client.dtypes import Array
from tpuserve_client.examples import Example
from tpuserve_client.exchange import Priority, example_call
from tpuserve_client.limits import Pool
from tpuserve_client.model import Classifications, Metadata, ModelSpec, Prediction, VersionStatus
from tpuserve_client.names import output_names
from tpuserve_client.request_headers import HeaderValue
from tpuserve_client.resolver import look_up_async
from tpuserve_client.retry import Retry
from tpuserve_client.row_parts import join_rows
from tpuserve_client.settings import DEFAULT_TIMEOUT_S, Settings, Timing
from tpuserve_client.split_predict import SplitPredict, first_then_in_tasks
from tpuserve_client.steps import Evaluate, Join, Pause, Resolve, Send, Step, Steps
from tpuserve_client.tls import Tls

T = TypeVar("T")


class AsyncClient(ClientCore):
    """A client for asyncio with the arguments and calls of `Client`.

    Create it anywhere, also at module level: it connects on the event loop of its first call, and again on each further
    loop. Close it with `await client.close()` on the loop that uses it, or use it in an `async with` statement.
    Cancelling a call cancels its request. `api_key` and functions in `headers` may return awaitables.
    """

    _connections: AsyncConnections

    def __init__(
        self,
        address: str | Sequence[str],
        *,
        tls: Tls | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        retry: Retry = Retry(),  # noqa: B008  frozen
        pool: Pool = Pool(),  # noqa: B008  frozen
        resolve_all: bool = False,
        on_attempt: Callable[[Attempt], None] | None = None,
        api_key: ApiKey | None = None,
        allow_plaintext_key: bool = False,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._sleep = sleep
        settings = Settings(
            address,
            tls,
            headers or {},
            timeout_s,
            retry,
            pool,
            resolve_all,
            on_attempt,
            api_key,
            allow_plaintext_key,
        )
        super().__init__(settings, Timing(clock, jitter))

    async def predict(
        self,
        model: str,
        inputs: Inputs,
        *,
        version: int | None = None,
        label: str | None = None,
        signature_name: str | None = None,
        output_filter: Sequence[str] = (),
        priority: Priority | None = None,
        max_batch_size: int | None = None,
        timeout_s: Timeout = OWN_TIMEOUT,
        headers: Mapping[str, HeaderValue] | None = None,
        retry: Retry | None = None,
    ) -> Prediction:
        """Run a model. See `Client.predict`."""
        spec, names = ModelSpec(model, version, label), output_names(output_filter)
        call = self._call(spec, timeout_s, headers, retry)
        if max_batch_size is not None:
            split = SplitPredict(self._operations, call, spec, signature_name, names, priority, max_batch_size)
            return await self._predict_parts(split, inputs)
        return await self._run(self._operations.predict(call, spec, inputs, signature_name, names, priority))

    async def classify(
        self,
        model: str,
        examples: Sequence[Example],
        *,
        context: Example | None = None,
        version: int | None = None,
        label: str | None = None,
        signature_name: str | None = None,
        priority: Priority | None = None,
        timeout_s: Timeout = OWN_TIMEOUT,
        headers: Mapping[str, HeaderValue] | None = None,
        retry: Retry | None = None,
    ) -> Classifications:
        """Classify examples. See `Client.classify`."""
        spec = ModelSpec(model, version, label)
        converted = example_call(spec, examples, context, signature_name, priority)
        return await self._run(self._operations.classify(self._call(spec, timeout_s, headers, retry), converted))

    async def regress(
        self,
        model: str,
        examples: Sequence[Example],
        *,
        context: Example | None = None,
        version: int | None = None,
        label: str | None = None,
        signature_name: str | None = None,
        priority: Priority | None = None,
        timeout_s: Timeout = OWN_TIMEOUT,
        headers: Mapping[str, HeaderValue] | None = None,
        retry: Retry | None = None,
    ) -> Array:
        """Return the model's value for each example. See `Client.regress`."""
        spec = ModelSpec(model, version, label)
        converted = example_call(spec, examples, context, signature_name, priority)
        return await self._run(self._operations.regress(self._call(spec, timeout_s, headers, retry), converted))

    async def metadata(
        self,
        model: str,
        *,
        version: int | None = None,
        label: str | None = None,
        with_labels: bool = False,
        timeout_s: Timeout = OWN_TIMEOUT,
        headers: Mapping[str, HeaderValue] | None = None,
        retry: Retry | None = None,
    ) -> Metadata:
        """Return the model's signatures. See `Client.metadata`."""
        spec = ModelSpec(model, version, label)
        call = self._call(spec, timeout_s, headers, retry)
        return await self._run(self._operations.metadata(call, spec, with_labels=with_labels))

    async def status(
        self,
        model: str,
        *,
        version: int | None = None,
        timeout_s: Timeout = OWN_TIMEOUT,
        headers: Mapping[str, HeaderValue] | None = None,
        retry: Retry | None = None,
    ) -> tuple[VersionStatus, ...]:
        """Return the state of each version. See `Client.status`."""
        spec = ModelSpec(model, version)
        return await self._run(self._operations.status(self._call(spec, timeout_s, headers, retry), spec))

    async def is_ready(
        self,
        model: str | None = None,
        *,
        version: int | None = None,
        timeout_s: Timeout = OWN_TIMEOUT,
        headers: Mapping[str, HeaderValue] | None = None,
    ) -> bool:
        """Return whether the server or a model answers predictions now. See `Client.is_ready`."""
        spec = None if model is None else ModelSpec(model, version)
        return not await self._run(self._operations.why_not_ready(self._call(spec, timeout_s, headers), spec))

    async def why_not_ready(
        self,
        model: str | None = None,
        *,
        version: int | None = None,
        timeout_s: Timeout = OWN_TIMEOUT,
        headers: Mapping[str, HeaderValue] | None = None,
    ) -> str:
        """Return why the server or a model answers no predictions now. See `Client.why_not_ready`."""
        spec = None if model is None else ModelSpec(model, version)
        return await self._run(self._operations.why_not_ready(self._call(spec, timeout_s, headers), spec))

    async def wait_until_ready(self, timeout_s: float, model: str | None = None, *, version: int | None = None) -> None:
        """Wait until `is_ready`. See `Client.wait_until_ready`."""
        spec = None if model is None else ModelSpec(model, version)
        await self._run(self._operations.wait_until_ready(self._call(spec, timeout_s), spec))

    async def close(self) -> None:
        """Close the connections. Later calls raise FailedPrecondition."""
        await self._connections.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _predict_parts(self, split: SplitPredict, inputs: Inputs) -> Prediction:
        parts = await self._run(split.parts(inputs))
        return join_rows(await first_then_in_tasks(lambda part: self._run(split.predict(part)), parts))

    def _release(self) -> bool:
        return self._connections.release_idle()

    def _make_connections(self) -> AsyncConnections:
        return AsyncConnections(
            lambda endpoint: make_async_transport(
                endpoint, self._endpoint_tls(endpoint), self._endpoint_headers(endpoint), self._settings
            )
        )

    async def _run(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    result = await self._carry_out(step)
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            returned: T = end.value
            return returned
        finally:
            steps.close()

    async def _carry_out(self, step: Step) -> Any:  # noqa: ANN401  the result depends on the step
        match step:
            case Send():
                connections, endpoint = self._connections, step.endpoint
                transport = connections.find(endpoint) or await connections.open(endpoint)
                return await transport.send(step.exchange, step.timeout_s)
            case Pause():
                await self._sleep(step.seconds)
            case Join():
                with suppress(TimeoutError):
                    async with asyncio.timeout(step.timeout_s):
                        await asyncio.wrap_future(step.future)
            case Resolve():
                return await look_up_async(step.host)
            case Evaluate():
                value = step.function()
                return await value if inspect.isawaitable(value) else value
        return None
