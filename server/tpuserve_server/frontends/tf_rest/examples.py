"""Classify and regress on REST: from a body to a response."""

import asyncio
from functools import partial
from typing import Final

from tpuserve_server.core.budgets.decoded import DecodedBudget
from tpuserve_server.core.budgets.response import JSON_ROWS, ResponseBudget
from tpuserve_server.core.service import InferenceService
from tpuserve_server.core.types import ModelSpec, PredictResult
from tpuserve_server.frontends.exchange import HttpCall
from tpuserve_server.frontends.http.body import LARGE_BODY_BYTES
from tpuserve_server.frontends.http.response import CACHE_HEADERS, HttpResponse
from tpuserve_server.frontends.tf_grpc.examples import LOG_KINDS, run_examples
from tpuserve_server.frontends.tf_rest.route import Action
from tpuserve_server.request_log.request_logs import RequestLogs
from tpuserve_server.wire.example_request import encode_example_request
from tpuserve_server.wire.example_run import find_run
from tpuserve_server.wire.inference_method import CLASSIFY, REGRESS, InferenceMethod
from tpuserve_server.wire.inference_result import encode_response
from tpuserve_server.wire.json.examples import decode_json_examples
from tpuserve_server.wire.json.large import is_large

METHODS: Final = {Action.CLASSIFY: CLASSIFY, Action.REGRESS: REGRESS}


class RestExamples:
    """Both methods. They raise ServingErrors in upstream's order: errors of the body before those of the model."""

    def __init__(
        self,
        service: InferenceService,
        logs: RequestLogs | None,
        *,
        check_method_names: bool,
        max_repeated_bytes: int,
        decoded: DecodedBudget,
        responses: ResponseBudget,
    ) -> None:
        """Answer from `service` and pass answered requests to `logs`. See ExampleMethods for the other arguments."""
        self._service = service
        self._logs = logs
        self._check_method_names = check_method_names
        self._max_repeated_bytes = max_repeated_bytes
        self._decoded = decoded
        self._responses = responses

    async def infer(self, action: Action, target: ModelSpec, call: HttpCall) -> HttpResponse:
        """Read a body and answer it for the model that the path names."""
        method, measured = METHODS[action], call.measured
        body = await call.read_body()
        if len(body) > LARGE_BODY_BYTES or is_large(body):
            request = await asyncio.to_thread(decode_json_examples, body, self._max_repeated_bytes, self._decoded)
        else:
            request = decode_json_examples(body, self._max_repeated_bytes)
        measured.examples = len(request.examples)
        with self._service.acquire_version(target) as version:
            run = find_run(
                version.signatures, method, request.signature_name, check_method_name=self._check_method_names
            )
            measured.runs(version, run.signature.name, call.priority)
            with call.watch_client():
                result = await run_examples(version, run, request.examples, call.deadline, call.priority)
        encode = partial(method.encode_json, result.outputs, len(request.examples))
        encoded = await self._responses.encode(encode, target.name, (result.outputs, JSON_ROWS))
        if self._logs is not None and (log := self._logs.choose(target.name)):
            # The log's thread encodes these, in the form of gRPC requests.
            encode_request = partial(encode_example_request, result.servable, result.signature_name, request.examples)
            encode_result = partial(_encode, method, result, len(request.examples))
            kind, size_bytes = LOG_KINDS[method.name], sum(map(len, request.examples)) + len(encoded)
            self._logs.add(
                log, kind, result.servable, result.signature_name, encode_request, encode_result, size_bytes=size_bytes
            )
        return HttpResponse(200, encoded, result.servable.version, CACHE_HEADERS[result.cache])


def _encode(method: InferenceMethod, result: PredictResult, examples: int) -> bytes:
    return encode_response(method.encode(result.outputs, examples), result.servable, result.signature_name)
