"""tensorflow.serving.PredictionService, except requests with tf.Examples, and tensorflow.serving.ModelService."""

import asyncio
from functools import partial

from tpuserve_server.core.models.configured_models import ConfiguredModels
from tpuserve_server.core.serving.budgets import RAW, TYPED, Budgets
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.types import Body, PredictResult, ServableId, Tensors
from tpuserve_server.core.terms.validation import check_names
from tpuserve_server.observe.request_log.request_logs import RequestLogs
from tpuserve_server.observe.request_log.writer import LogKind, LogTarget
from tpuserve_server.protocols.request_lane import RequestLane, Template
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.rpc import CallContext
from tpuserve_server.protocols.settling import settle
from tpuserve_server.wire.layouts import Layouts
from tpuserve_server.wire.model_messages import (
    decode_metadata_request,
    decode_status_request,
    encode_metadata_response,
    encode_status_response,
)
from tpuserve_server.wire.model_server_config import RELOADED, decode_reload_request
from tpuserve_server.wire.predict_layout import is_slow, learn_predict_request, split_request
from tpuserve_server.wire.predict_proto import (
    ResponseTemplate,
    decode_predict_inputs,
    decode_predict_spec,
    encode_predict_response,
    parse_predict_request,
)
from tpuserve_server.wire.proto_scan import PREDICT_REQUEST, check_structure, is_quick


class PredictLane:
    """Implements request_lane.LaneProtocol for tensorflow.serving.PredictionService/Predict."""

    method = "Predict"

    def __init__(self, *, as_content: bool) -> None:
        """Start without layouts. With `as_content`, encode outputs in tensor_content instead of the typed fields."""
        self.layouts: Layouts[None] = Layouts(learn_predict_request)
        self._as_content = as_content
        self.encoding = RAW if as_content else TYPED

    def template(self, result: PredictResult) -> Template | None:
        """Return the template of a response."""
        template = ResponseTemplate.of(result, as_content=self._as_content)
        return None if template is None else template.encode

    def encode(self, result: PredictResult, request_id: bytes) -> bytes:
        """Return the response. The protocol has no ids."""
        return encode_predict_response(result, as_content=self._as_content)

    def log(
        self, logs: RequestLogs, target: LogTarget, body: Body, inputs: Tensors, result: PredictResult, response: bytes
    ) -> None:
        """Log an answered request as its bytes."""
        logs.add(target, LogKind.PREDICT, result.servable, result.signature_name, body, response)


# Kind of the request's bytes in the response cache.
_KIND = "PredictRequest"


class PredictionMethods:
    """Methods of PredictionService, from bytes to bytes. They raise ServingErrors."""

    def __init__(
        self,
        service: InferenceService,
        meter: RequestMeter,
        logs: RequestLogs | None,
        clock: Clock,
        max_repeated_bytes: int,
        budgets: Budgets,
        *,
        as_content: bool,
    ) -> None:
        """Answer from `service`.

        With `as_content`, outputs are encoded in tensor_content instead of the typed fields.
        `max_repeated_bytes` limits the memory for values that a request repeats without sending them, and `budgets` the
        memory of its decoded objects and the size of a response.
        """
        self._service = service
        self._meter = meter
        self._logs = logs
        self._as_content = as_content
        self._max_repeated_bytes = max_repeated_bytes
        self._decoded = budgets.decoded
        lane = PredictLane(as_content=as_content)
        self._encoding = lane.encoding
        self._responses = budgets.response
        # Answers Predict.
        self.predict = RequestLane(lane, self._predict, service, meter, clock, budgets.response, logs)

    async def _predict(self, body: Body, context: CallContext) -> bytes:
        with self._meter.call("Predict", context) as measured:
            message, contents = split_request(body)
            is_quick_body = is_quick(message, PREDICT_REQUEST)
            if is_quick_body:
                proto = parse_predict_request(message)
                is_quick_body = not is_slow(proto, contents)
            else:
                await asyncio.to_thread(check_structure, message, PREDICT_REQUEST, self._decoded)
                proto = await asyncio.to_thread(parse_predict_request, message)
            spec = decode_predict_spec(proto)
            measured.model = spec.name
            priority = context.priority
            may_recall = spec.name in self._service.cached_models
            recall = await self._service.recall(spec, _KIND, body) if may_recall else None
            if recall is not None and recall.found is not None:
                measured.recalls(recall, recall.found.signature_name)
                self._log(spec.name, recall.servable_id, recall.found.signature_name, body, recall.found.body)
                return recall.found.body
            await self._service.loaded(spec, context.deadline)
            with self._service.acquire(spec) as model:
                measured.runs(model, model.signature.name, priority)
                model.check_deadline(context.deadline, priority)
                # Check before decoding: a short message with repeated values may decode to much memory.
                check_names(model.signature, proto.inputs)
                limits = self._max_repeated_bytes, model.max_repeated_rows
                if is_quick_body:
                    inputs = decode_predict_inputs(proto, *limits, contents, model.check_shape)
                else:
                    decoding = asyncio.to_thread(decode_predict_inputs, proto, *limits, contents, model.check_shape)
                    inputs = await decoding
                result = await model.predict(inputs, context.deadline, tuple(proto.output_filter), priority)
            encode = partial(encode_predict_response, result, as_content=self._as_content)
            response = await self._responses.encode(encode, spec.name, (result.outputs, self._encoding))
            if recall is not None:
                recall.keep(result, response)
            self._log(spec.name, result.servable, result.signature_name, body, response)
            return response

    def _log(self, model: str, servable: ServableId, signature_name: str, body: Body, response: bytes) -> None:
        if self._logs is not None and (log := self._logs.choose(model)):
            self._logs.add(log, LogKind.PREDICT, servable, signature_name, body, response)

    async def get_model_metadata(self, body: bytes, context: CallContext) -> bytes:
        """Answer GetModelMetadata."""
        with self._meter.call("GetModelMetadata", context) as measured:
            request = decode_metadata_request(body)
            measured.model = request.spec.name
            await self._service.loaded(request.spec, context.deadline)
            return encode_metadata_response(self._service.metadata(request.spec), request.fields)


class ModelMethods:
    """Methods of ModelService, from bytes to bytes. They raise ServingErrors."""

    def __init__(self, service: InferenceService, meter: RequestMeter, clock: Clock) -> None:
        """Answer from `service`."""
        self._service = service
        self._meter = meter
        self._clock = clock
        # Reloads run one at a time. The lock keeps waiting reloads from occupying worker threads.
        self._turn = asyncio.Lock()

    async def get_model_status(self, body: bytes, context: CallContext) -> bytes:
        """Answer GetModelStatus, newest version first. Ignore a label, as upstream does."""
        with self._meter.call("GetModelStatus", context) as measured:
            spec = decode_status_request(body)
            measured.model = spec.name
            return encode_status_response(self._service.status_once_read(spec))

    async def reload(self, models: ConfiguredModels, body: bytes, context: CallContext) -> bytes:
        """Answer HandleReloadConfigRequest when new models serve and labels are assigned, or at the client's deadline.

        An error becomes the status of the call, without a response message, as upstream does.
        """
        with self._meter.call("HandleReloadConfigRequest", context):
            # In a thread: a megabyte may hold many models.
            configs, sha256 = await asyncio.to_thread(decode_reload_request, body)
            async with self._turn:
                # In a thread: it reads base paths, which may be on slow remote storage.
                transition = await asyncio.to_thread(models.reload, configs, body, sha256)
            await settle(transition, context.deadline, self._service, self._clock)
            return RELOADED
