"""Handlers of the REST paths for the repository, configuration, statistics, settings and shared memory."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

import orjson

from tpuserve_server.core.terms.errors import InvalidArgument, Unimplemented
from tpuserve_server.protocols.exchange import HttpCall
from tpuserve_server.protocols.http.response import HttpResponse
from tpuserve_server.protocols.oip.administration import Administration, check_unchanged, log_settings, trace_settings
from tpuserve_server.protocols.oip.models import describe_config
from tpuserve_server.protocols.oip.shared_memory import cuda_unsupported
from tpuserve_server.protocols.oip_rest.route import Action, Route
from tpuserve_server.wire.oip.control_messages import (
    index_to_json,
    parse_object,
    read_boolean,
    read_parameters,
    read_size,
    read_text,
    read_texts,
)
from tpuserve_server.wire.oip.metadata import model_config_to_json, statistics_to_json

Handler: TypeAlias = Callable[[Route, HttpCall], Awaitable[HttpResponse]]

_EMPTY = HttpResponse(200, b"", compressible=False)


class AdministrationHandlers:
    """Answers from one Administration."""

    def __init__(self, administration: Administration) -> None:
        """Answer from `administration`."""
        self._administration = administration
        self.by_action: Mapping[Action, Handler] = {
            Action.MODEL_CONFIG: self._config,
            Action.MODEL_STATISTICS: self._statistics,
            Action.REPOSITORY_INDEX: self._index,
            Action.MODEL_LOAD: self._load,
            Action.MODEL_UNLOAD: self._unload,
            Action.TRACE_SETTING: self._trace,
            Action.LOG_SETTINGS: self._log,
            Action.SHARED_MEMORY_STATUS: self._region_status,
            Action.SHARED_MEMORY_REGISTER: self._region_register,
            Action.SHARED_MEMORY_UNREGISTER: self._region_unregister,
            Action.CUDA_STATUS: self._cuda_status,
            Action.CUDA_REGISTER: self._cuda_register,
            Action.CUDA_UNREGISTER: self._cuda_unregister,
        }

    async def _config(self, route: Route, call: HttpCall) -> HttpResponse:
        administration = self._administration
        await administration.service.loaded(route.spec, call.deadline)
        facts = describe_config(administration.service, administration.models, route.spec)
        return _json(model_config_to_json(facts))

    async def _statistics(self, route: Route, call: HttpCall) -> HttpResponse:
        return _json(statistics_to_json(self._administration.statistics(route.spec)))

    async def _index(self, route: Route, call: HttpCall) -> HttpResponse:
        document = parse_object(await call.read_body())
        entries = self._administration.repository.index(only_ready=read_boolean(document, "ready"))
        return _json(index_to_json(entries))

    async def _load(self, route: Route, call: HttpCall) -> HttpResponse:
        document = parse_object(await call.read_body())
        _refuse_repository(route)
        parameters = read_texts(read_parameters(document))
        await self._administration.repository.load(route.spec.name, parameters, call.deadline)
        return _EMPTY

    async def _unload(self, route: Route, call: HttpCall) -> HttpResponse:
        document = parse_object(await call.read_body())
        _refuse_repository(route)
        with_dependents = read_boolean(read_parameters(document), "unload_dependents")
        if route.spec.name not in self._administration.service.models():
            # An unknown model is no error, and must not become a label of the metrics.
            call.measured.model = ""
        await self._administration.repository.unload(route.spec.name, with_dependents=with_dependents)
        return _EMPTY

    async def _trace(self, route: Route, call: HttpCall) -> HttpResponse:
        settings = trace_settings(self._administration.service, route.spec.name)
        return await _settings(settings, call)

    async def _log(self, route: Route, call: HttpCall) -> HttpResponse:
        return await _settings(log_settings(), call)

    async def _region_status(self, route: Route, call: HttpCall) -> HttpResponse:
        return _json([status._asdict() for status in self._administration.regions.status(route.region)])

    async def _region_register(self, route: Route, call: HttpCall) -> HttpResponse:
        document = parse_object(await call.read_body(), may_be_empty=False)
        if route.region is None:
            raise InvalidArgument("'region name' is necessary to register system shared memory region")
        for key in ("key", "byte_size"):
            if key not in document:
                raise InvalidArgument(f"Shared memory register request has no '{key}' field")
        offset = read_size(document, "offset") if "offset" in document else 0
        byte_size = read_size(document, "byte_size")
        self._administration.regions.register(route.region, read_text(document, "key"), offset, byte_size)
        return _EMPTY

    async def _region_unregister(self, route: Route, call: HttpCall) -> HttpResponse:
        await call.read_body()
        self._administration.regions.unregister(route.region)
        return _EMPTY

    async def _cuda_status(self, route: Route, call: HttpCall) -> HttpResponse:
        return _json([])

    async def _cuda_register(self, route: Route, call: HttpCall) -> HttpResponse:
        await call.read_body()
        if route.region is None:
            raise InvalidArgument("'region name' is necessary to register cuda shared memory region")
        raise cuda_unsupported(route.region)

    async def _cuda_unregister(self, route: Route, call: HttpCall) -> HttpResponse:
        await call.read_body()
        return _EMPTY


async def _settings(current: Mapping[str, bool | int | str | list[str]], call: HttpCall) -> HttpResponse:
    """Return the current settings, after the check that a POST changes none."""
    if call.scope["method"] == "POST":
        check_unchanged(current, parse_object(await call.read_body()))
    return _json(current)


def _refuse_repository(route: Route) -> None:
    if route.repository:
        raise Unimplemented("'repository_name' specification is not supported")


def _json(document: Mapping[str, object] | Sequence[object]) -> HttpResponse:
    return HttpResponse(200, orjson.dumps(document), compressible=False)
