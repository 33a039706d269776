"""Rules for a list of model configurations, in upstream's order and words (model_servers/server_core.cc)."""

import re
from collections.abc import Mapping, Sequence

from tpuserve_server.core.models.model_config import ENSEMBLE_PLATFORM, TENSORFLOW_PLATFORM, ModelConfig
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.name_rules import check_name, check_path
from tpuserve_server.core.terms.storage import without_secrets

# A URI with a scheme and a host, such as gs://bucket/model (tsl/platform/path.cc, ParseURI).
_URI = re.compile(r"[a-zA-Z][0-9a-zA-Z.]*://")
_PASSWORD = re.compile(r"[^/]+://[^/@]*:\S*@")


def check_list(configs: Sequence[ModelConfig]) -> None:
    """Check that names are unique and base paths absolute, and every text. Ensembles need no base path.

    Raises:
        InvalidArgument: naming the first that is not.
    """
    names: set[str] = set()
    for config in configs:
        _check_texts(config)
        if config.name in names:
            raise InvalidArgument(f"Illegal to list model {config.name} multiple times in config list")
        names.add(config.name)
    for config in configs:
        if config.ensemble is None and config.platform != ENSEMBLE_PLATFORM and not _is_absolute(config.base_path):
            raise InvalidArgument(
                f"Expected model {config.name} to have an absolute path or URI; got base_path()="
                f"{without_secrets(config.base_path)}"
            )


def _check_texts(config: ModelConfig) -> None:
    name = config.name
    check_name("Model name", name)
    check_path(f"Model {name}: base_path", config.base_path)
    # Messages and the status show base paths. No store reads credentials from them.
    if _PASSWORD.match(config.base_path):
        shown = without_secrets(config.base_path)
        raise InvalidArgument(f"Model {name}: base_path must have no password; got {shown}")
    check_name(f"Model {name}: model_platform", config.platform)
    for label in config.version_labels:
        check_name(f"Model {name}: version label", label)
    if config.logging is not None:
        check_name(f"Model {name}: type of log_collector_config", config.logging.type)
        check_path(f"Model {name}: filename_prefix", config.logging.filename_prefix)
    if config.ensemble is not None:
        for text in config.ensemble.names:
            check_name(f"Ensemble {name}: name", text)


def check_same_platforms(configs: Sequence[ModelConfig], before: Mapping[str, ModelConfig]) -> None:
    """Check that no model changes its platform while it stays configured. Raises InvalidArgument."""
    for config in configs:
        old = before.get(config.name)
        if old is not None and config.platform != old.platform:
            raise InvalidArgument(
                f"Illegal to change a model's platform. For model {config.name} platform was {old.platform} and new "
                f"platform requested is {config.platform}"
            )


def check_platforms(configs: Sequence[ModelConfig]) -> None:
    """Check that every platform is supported. Raises InvalidArgument."""
    for config in configs:
        if config.platform not in (TENSORFLOW_PLATFORM, ENSEMBLE_PLATFORM):
            raise InvalidArgument(f"Model {config.name} requests unsupported platform {config.platform}")


def _is_absolute(base_path: str) -> bool:
    return base_path.startswith("/") or _URI.match(base_path) is not None
