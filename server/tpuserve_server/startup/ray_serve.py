"""Application of Ray Serve: `serve run tpuserve_server.startup.ray_serve:app model_name=… model_base_path=…`."""

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from pydantic import ValidationError
from ray import serve
from ray.serve import Application
from ray.serve import metrics as ray_metrics

from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.ray.replica import Parts, Replica
from tpuserve_server.observe.logs.configuration import configure_logging
from tpuserve_server.observe.metrics.families import Collected, Sample
from tpuserve_server.startup.replica_models import MultiplexedModel, ReplicaModels, ReplicaRule
from tpuserve_server.startup.server_settings import ListeningSettings
from tpuserve_server.startup.settings import Settings, flags
from tpuserve_server.startup.validation import read_settings, read_settings_json, settings_json

DEPLOYMENT: Final = "tpuserve"
# Arguments of the application in addition to the server's flags.
ROOT, MOST_MODELS = "multiplexed_models_root", "multiplexed_models_per_replica"
_DEFAULT_MOST_MODELS: Final = 3
# The batcher needs many requests at a time, and Ray allows 5. Both limits bound the memory of waiting requests.
_MOST_IN_REPLICA, _MOST_AT_PROXY = 512, 1024
# Longer than a request, so that Ray does not kill a replica that finishes its last ones.
_GRACE_S: Final = 60.0

_MODEL_FLAGS: Final = frozenset(("model_base_path", "model_config_file", "model_artifact_uri"))
# A server without models: an empty configuration file is one.
_NO_MODELS: Final = {"model_config_file": os.devnull, "allow_reload_without_models": True}
# Flags of the listening and host sections that also apply in a replica.
_APPLICABLE: Final = frozenset(("max_request_bytes", "rest_api_timeout_in_ms", "rest_api_enable_cors_support"))
# The proxies of Ray Serve listen, and Ray drains replicas.
_OF_HOST: Final = frozenset(flag.name for flag in flags() if flag.options in (ListeningSettings, HostOptions))
_INAPPLICABLE: Final = _OF_HOST - _APPLICABLE


def app(args: Mapping[str, Any]) -> Application:
    """Return the application. `args` are the server's flags by name, ROOT and MOST_MODELS.

    Without a flag that names a model, `user_config` of the deployment names the models.

    Raises:
        ValueError: an argument is unknown, wrong, or has no effect in a replica.
    """
    values = dict(args)
    root, most = values.pop(ROOT, None), _read_most(values.pop(MOST_MODELS, _DEFAULT_MOST_MODELS))
    named = sorted(_MODEL_FLAGS & values.keys())
    if root is not None and named:
        raise ValueError(f"{ROOT} and {named[0]} exclude each other. Name other models in user_config")
    settings = _read(values if named else {**_NO_MODELS, **values})
    build = partial(build_replica, settings_json(settings), root, most)
    deployment = serve.deployment(
        serve.ingress()(Replica),
        name=DEPLOYMENT,
        max_ongoing_requests=_MOST_IN_REPLICA,
        max_queued_requests=_MOST_AT_PROXY,
        graceful_shutdown_timeout_s=_GRACE_S,
        logging_config={"enable_access_log": False},
    )
    return deployment.bind(build)


def build_replica(settings: str, root: str | None, most_models: int) -> Parts:
    """Build the parts of a replica in its process, from settings as JSON."""
    read = read_settings_json(settings)
    # Before the imports, which may log.
    configure_logging(read.server.log_format)
    # The process that deploys the application needs none of the server.
    from tpuserve_server.startup.app import Backend, Server, building

    with building():
        backend = Backend.build(read)
        models = ReplicaModels(backend.models.configured, root)
        server = Server(backend, ReplicaRule(serve.get_multiplexed_model_id, _multiplexed(models, most_models)))
    metrics = backend.observation.metrics
    return Parts(
        server,
        models.configure,
        read.listening.max_request_bytes,
        metrics.demand.ratio,
        RayMetrics(metrics.collect).publish,
    )


class RayMetrics:
    """Sets a gauge of Ray for each sample. Ray adds the prefix `ray_`, and labels for deployment and replica.

    Counters and histograms are gauges, too: Ray takes no totals. Their samples have the names and values of the
    server's page, and Prometheus' functions for counters apply to them. One thread at a time.
    """

    def __init__(self, collect: Callable[[], Iterable[Collected]]) -> None:
        """Read the families of `collect`. Create it in a replica, because Ray finds the labels there."""
        self._collect = collect
        self._gauges: dict[tuple[str, tuple[str, ...]], ray_metrics.Gauge] = {}

    def publish(self) -> None:
        """Set all gauges to the current values."""
        for collected in self._collect():
            for sample in collected.samples():
                self._gauge(sample, collected.family.text).set(sample.value, tags=sample.labels)

    def _gauge(self, sample: Sample, description: str) -> ray_metrics.Gauge:
        key = (sample.name, tuple(sample.labels))
        gauge = self._gauges.get(key)
        if gauge is None:
            gauge = self._gauges[key] = ray_metrics.Gauge(sample.name, description=description, tag_keys=key[1])
        return gauge


def _multiplexed(models: ReplicaModels, most_models: int) -> Callable[[str], Awaitable[None]]:
    """Return a function that loads a model by its id, and unloads the least recently used one of `most_models`."""

    # Ray sets attributes on the function, so it takes no bound method.
    @serve.multiplexed(max_num_models_per_replica=most_models)  # type: ignore[untyped-decorator]  # ray is untyped
    async def load(model_id: str) -> MultiplexedModel:
        return await models.load(model_id)

    async def use(model_id: str) -> None:
        # Ray unloads a model before it loads another one, even one that does not exist.
        await models.check(model_id)
        await load(model_id)

    return use


def _read_most(value: object) -> int:
    """Return the number of models. `serve run` passes text."""
    if not str(value).isdecimal() or not int(str(value)):
        raise ValueError(f"{MOST_MODELS} must be a whole number above 0; was {value!r}")
    return int(str(value))


def _read(values: Mapping[str, Any]) -> Settings:
    """Return the settings. Raises ValueError with every mistake."""
    if inapplicable := sorted(_INAPPLICABLE & values.keys()):
        raise ValueError(
            f"These flags have no effect in a replica of Ray Serve: {', '.join(inapplicable)}. Set http_options and "
            "grpc_options of the Serve configuration, and graceful_shutdown_timeout_s of the deployment"
        )
    try:
        # The page and its streams of events would show any one replica.
        return read_settings(**{"enable_console": False, **values})
    except ValidationError as error:
        wrong = "; ".join(": ".join((*map(str, one["loc"]), one["msg"])) for one in error.errors())
        raise ValueError(f"Wrong arguments of the application. {wrong}") from None
