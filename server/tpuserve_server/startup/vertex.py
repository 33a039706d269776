"""Vertex AI's paths from the settings: the model that its predict route serves, and the paths that are taken."""

from collections.abc import Sequence

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.protocols.vertex.paths import VertexPaths
from tpuserve_server.startup.model_config_file import ModelConfigFile
from tpuserve_server.startup.options import rest_options
from tpuserve_server.startup.settings import Settings
from tpuserve_server.startup.text_format import ConfigError


def vertex_paths(settings: Settings) -> VertexPaths | None:
    """Return the paths, or None if no route is set. Reads the model configuration file; blocks.

    The model is the only one at the start, or the one that `model_name` names. It does not change with the
    configuration, so that the guard and the handler of a request always see the same model.

    Raises:
        ConfigError: a route has another meaning, no model is certain, or a file cannot be used.
    """
    listening = settings.listening
    if not listening.has_vertex_routes:
        return None
    metrics_path = rest_options(settings).metrics_path
    model = _model(settings, listening.predict_route[0])
    try:
        return VertexPaths.of(
            model, listening.health_route, listening.predict_route, [metrics_path] if metrics_path else []
        )
    except InvalidArgument as error:
        raise ConfigError(error.message) from None


def _model(settings: Settings, setting: str) -> str:
    name, names = settings.models.model_name, _names(settings)
    if name in names or settings.listening.vertex_predict_route is None:
        return name
    if len(names) == 1:
        return names[0]
    raise ConfigError(
        f"{setting} serves one model, and the configuration has {len(names)}. Set --model_name to one of them"
    )


def _names(settings: Settings) -> Sequence[str]:
    file = settings.models.model_config_file
    if file is None:
        return [settings.models.model_name]
    return [config.name for config in ModelConfigFile(file, poll_wait_s=0).read()]
