"""REST's classify and regress: from a body to a response."""

import asyncio
from typing import TYPE_CHECKING, Final

from tpuserve_server.core.deadline import Deadline
from tpuserve_server.core.service import InferenceService
from tpuserve_server.core.types import ModelSpec
from tpuserve_server.frontends.edge import MeasuredRequest
from tpuserve_server.frontends.examples import run_examples
from tpuserve_server.frontends.rest_request import LARGE_BODY_BYTES, ClientWatch
from tpuserve_server.frontends.rest_response import JsonResponse
from tpuserve_server.frontends.rest_route import Action
from tpuserve_server.wire.example_run import find_run
from tpuserve_server.wire.inference_method import CLASSIFY, REGRESS
from tpuserve_server.wire.json_examples import decode_json_examples

if TYPE_CHECKING:
    from starlette.types import Receive

METHODS: Final = {Action.CLASSIFY: CLASSIFY, Action.REGRESS: REGRESS}


class RestExamples:
    """Both methods. They raise ServingErrors, in upstream's order: the body's before the model's."""

    def __init__(self, service: InferenceService, *, check_method_names: bool, watch_delay_s: float) -> None:
        """Answer from `service`; `watch_delay_s` as ClientWatch's."""
        self._service = service
        self._check_method_names = check_method_names
        self._watch_delay_s = watch_delay_s

    async def infer(
        self,
        action: Action,
        target: ModelSpec,
        body: bytes,
        receive: "Receive",
        deadline: Deadline,
        measured: MeasuredRequest,
    ) -> JsonResponse:
        """Answer a complete body for the model that the path names."""
        method = METHODS[action]
        if len(body) > LARGE_BODY_BYTES:
            request = await asyncio.to_thread(decode_json_examples, body)
        else:
            request = decode_json_examples(body)
        measured.examples = len(request.examples)
        with self._service.hold_version(target) as version:
            run = find_run(
                version.signatures, method, request.signature_name, check_method_name=self._check_method_names
            )
            measured.runs(version.servable_id, run.signature.name)
            with ClientWatch(receive, self._watch_delay_s):
                result = await run_examples(version, run, request.examples, deadline)
        return JsonResponse(200, method.encode_json(result.outputs, len(request.examples)), result.servable.version)
