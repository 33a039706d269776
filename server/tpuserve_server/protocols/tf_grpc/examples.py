"""Classify, Regress and MultiInference on gRPC: requests that carry tf.Examples. REST shares `run_examples`."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from tpuserve_server.core.serving.budgets import TYPED, Budgets
from tpuserve_server.core.serving.service import AcquiredVersion, InferenceService
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import Array, PredictResult
from tpuserve_server.observe.request_log.request_logs import RequestLogs
from tpuserve_server.observe.request_log.writer import LogKind
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.rpc import CallContext
from tpuserve_server.wire.example_methods import (
    CLASSIFY,
    EXAMPLES_INPUT,
    REGRESS,
    ExampleRun,
    InferenceMethod,
    encode_inference_result,
    encode_response,
    find_run,
    find_task_runs,
)
from tpuserve_server.wire.example_request import parse_example_request, parse_multi_inference_request
from tpuserve_server.wire.proto_scan import EXAMPLE_REQUEST, check_structure, is_quick

_T = TypeVar("_T")
LOG_KINDS = {CLASSIFY.name: LogKind.CLASSIFY, REGRESS.name: LogKind.REGRESS}


class ExampleMethods:
    """The methods, from bytes to bytes. They raise ServingErrors."""

    def __init__(
        self,
        service: InferenceService,
        meter: RequestMeter,
        logs: RequestLogs | None,
        max_repeated_bytes: int,
        budgets: Budgets,
        *,
        check_method_names: bool,
    ) -> None:
        """Answer from `service`.

        With `check_method_names`, a signature's method_name must match the method (native TF2 models have none).
        `max_repeated_bytes` limits the memory for values that a request repeats without sending them, and `budgets` the
        memory of its decoded objects and the size of a response.
        """
        self._service = service
        self._meter = meter
        self._logs = logs
        self._check_method_names = check_method_names
        self._max_repeated_bytes = max_repeated_bytes
        self._decoded = budgets.decoded
        self._responses = budgets.response

    async def classify(self, body: bytes, context: CallContext) -> bytes:
        """Answer Classify."""
        return await self._infer(CLASSIFY, body, context)

    async def regress(self, body: bytes, context: CallContext) -> bytes:
        """Answer Regress."""
        return await self._infer(REGRESS, body, context)

    async def multi_inference(self, body: bytes, context: CallContext) -> bytes:
        """Answer MultiInference: run the signatures of all tasks concurrently, on one version.

        If tasks fail, the call fails with the error of the first one. Upstream runs all tasks as one; here each task
        shares batches with other requests for its signature.
        """
        with self._meter.call("MultiInference", context) as measured:
            request = await self._parse(parse_multi_inference_request, body)
            measured.model = request.tasks[0].spec.name
            priority = context.priority
            await self._service.loaded(request.tasks[0].spec, context.deadline)
            with self._service.acquire_version(request.tasks[0].spec) as version:
                measured.runs(version)
                runs = find_task_runs(version.signatures, request.tasks, check_method_names=self._check_method_names)
                examples = request.examples(self._max_repeated_bytes)
                measured.examples = len(examples)
                results = await _run_all(version, runs, examples, context.deadline, priority)
            self._responses.check(measured.model, *[(result.outputs, TYPED) for result in results])
            response = b"".join(
                [_encode_task(run, result, len(examples)) for run, result in zip(runs, results, strict=True)]
            )
            if self._logs is not None and (log := self._logs.choose(measured.model)):
                self._logs.add(log, LogKind.MULTI_INFERENCE, version.servable_id, "", body, response)
            return response

    async def _parse(self, parse: Callable[..., _T], body: bytes, *names: str) -> _T:
        if is_quick(body, EXAMPLE_REQUEST):
            return parse(body, *names)
        await asyncio.to_thread(check_structure, body, EXAMPLE_REQUEST, self._decoded)
        return await asyncio.to_thread(parse, body, *names)

    async def _infer(self, method: InferenceMethod, body: bytes, context: CallContext) -> bytes:
        with self._meter.call(method.name, context) as measured:
            request = await self._parse(parse_example_request, body, method.request_name)
            measured.model = request.spec.name
            priority = context.priority
            await self._service.loaded(request.spec, context.deadline)
            with self._service.acquire_version(request.spec) as version:
                run = find_run(
                    version.signatures, method, request.signature_name, check_method_name=self._check_method_names
                )
                measured.runs(version, run.signature.name, priority)
                examples = request.examples(self._max_repeated_bytes)
                measured.examples = len(examples)
                result = await run_examples(version, run, examples, context.deadline, priority)
            self._responses.check(measured.model, (result.outputs, TYPED))
            encoded = method.encode(result.outputs, len(examples))
            response = encode_response(encoded, result.servable, result.signature_name)
            if self._logs is not None and (log := self._logs.choose(measured.model)):
                self._logs.add(log, LOG_KINDS[method.name], result.servable, result.signature_name, body, response)
            return response


async def run_examples(
    version: AcquiredVersion, run: ExampleRun, examples: Array, deadline: Deadline, priority: Priority
) -> PredictResult:
    """Run a signature over a [n] array of serialized Examples. Raises ServingError as predictions do."""
    return await version.predict(run.signature, {EXAMPLES_INPUT: examples}, deadline, run.output_names, priority)


async def _run_all(
    version: AcquiredVersion, runs: Sequence[ExampleRun], examples: Array, deadline: Deadline, priority: Priority
) -> list[PredictResult]:
    # All runs end, or are cancelled with this task, before the version is released.
    outcomes = await asyncio.gather(
        *[run_examples(version, run, examples, deadline, priority) for run in runs], return_exceptions=True
    )
    results = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results


def _encode_task(run: ExampleRun, result: PredictResult, examples: int) -> bytes:
    return encode_inference_result(
        run.method.encode(result.outputs, examples),
        result.servable,
        result.signature_name,
        is_regression=run.method is REGRESS,
    )
