"""ReplicaModels and ReplicaRule: the models of a replica, and the rule that loads the model of each request.

The models come from Ray's `user_config` and, by id, from the root of multiplexed models.
"""

import asyncio
import posixpath
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from google.protobuf import json_format

from tpuserve_formats.messages.model_server_config import ModelServerConfig
from tpuserve_server.access.caller import CallerModels
from tpuserve_server.core.models.configured_models import ConfiguredModels
from tpuserve_server.core.models.model_config import ModelConfig
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import InvalidArgument, NotFound, ServingError, Unimplemented
from tpuserve_server.hosts.application import HostError
from tpuserve_server.protocols.guard import Attempt
from tpuserve_server.wire.model_server_config import model_configs


class ReplicaModels:
    """Changes the models of the replica. Changes wait for each other: `_lock` guards both groups of models."""

    def __init__(self, configured: ConfiguredModels, root: str | None) -> None:
        """Change `configured`. `root` has a directory for each multiplexed model; None: there are none."""
        self._configured = configured
        self._root = root
        self._lock = threading.Lock()
        self._given: tuple[ModelConfig, ...] = ()
        self._multiplexed: dict[str, ModelConfig] = {}

    async def configure(self, user_config: Mapping[str, Any]) -> None:
        """Serve the models of a ModelServerConfig in JSON form, and wait until they are available.

        Raises:
            HostError: the configuration is invalid, or a model cannot be loaded.
        """
        try:
            await asyncio.to_thread(self._configure, _parse(user_config))
        except ServingError as error:
            raise HostError(f"Cannot apply user_config: {error.message}") from None

    async def check(self, name: str) -> None:
        """Check that the root has the model `name`.

        Raises:
            InvalidArgument: `name` is no name of a directory.
            NotFound: the root has no such model, or it has no version.
        """
        if name in self._multiplexed or any(config.name == name for config in self._given):
            return
        if self._root is None:
            raise InvalidArgument("This application serves no multiplexed models. Send no multiplexed model id")
        if not name or "/" in name or name.startswith("."):
            raise InvalidArgument(f"The multiplexed model id must be the name of a directory; was {name!r}")
        if not await asyncio.to_thread(self._configured.find_coming, self._config(name)):
            raise NotFound(f"There is no multiplexed model {name} with a version")

    async def load(self, name: str) -> "MultiplexedModel":
        """Serve the model `name` of the root, which `check` has accepted, and wait until it is available.

        Raises:
            NotFound: the model cannot be loaded.
        """
        await asyncio.to_thread(self._add, self._config(name))
        return MultiplexedModel(name, self._remove)

    def _config(self, name: str) -> ModelConfig:
        return ModelConfig(name, posixpath.join(self._root or "", name))

    def _configure(self, configs: tuple[ModelConfig, ...]) -> None:
        for config in configs:
            # Without a version, a new model would never become available, and Ray would wait for it.
            if config.ensemble is None and not self._configured.find_coming(config):
                raise NotFound(f"model {config.name} has no version in {config.base_path}")
        with self._lock:
            self._configured.apply([*configs, *self._multiplexed.values()], deadline=Deadline.never())
            self._given = configs

    def _add(self, config: ModelConfig) -> None:
        with self._lock:
            others = [*self._given, *self._multiplexed.values()]
            if any(other.name == config.name for other in others):
                return
            try:
                self._configured.apply([*others, config], deadline=Deadline.never())
            except ServingError as error:
                self._configured.begin(others)
                raise NotFound(f"Cannot load the multiplexed model {config.name}: {error.message}") from None
            self._multiplexed[config.name] = config

    def _remove(self, name: str) -> None:
        with self._lock:
            if self._multiplexed.pop(name, None) is not None:
                self._configured.begin([*self._given, *self._multiplexed.values()])


class MultiplexedModel:
    """A loaded model. Ray calls `__del__` once to unload it, on a worker thread, and Python calls it again."""

    def __init__(self, name: str, remove: Callable[[str], None]) -> None:
        self._name = name
        self._remove: Callable[[str], None] | None = remove

    def __del__(self) -> None:
        """Unload the model when its requests have ended."""
        remove, self._remove = self._remove, None
        if remove is not None:
            remove(self._name)


def _parse(user_config: Mapping[str, Any]) -> tuple[ModelConfig, ...]:
    try:
        config = json_format.ParseDict(dict(user_config), ModelServerConfig())
    except json_format.ParseError as error:
        raise InvalidArgument(f"it is no ModelServerConfig: {error}") from None
    return model_configs(config)


# The only POST requests of the Open Inference Protocol that change nothing.
_READING: Final = ("/infer", "/repository/index")


class ReplicaRule:
    """The rule of every request to a replica. Runs on the replica's event loop, within the request's context of Ray."""

    def __init__(self, find_model_id: Callable[[], str], load: Callable[[str], Awaitable[object]]) -> None:
        """Load the model that `find_model_id` finds in Ray's context of the request; an empty id loads nothing."""
        self._find_model_id = find_model_id
        self._load = load

    async def check(self, attempt: Attempt) -> None:
        """Load the multiplexed model of the request.

        Raises:
            Unimplemented: the request would change this replica alone.
            PermissionDenied: the client may not use the multiplexed model.
            ServingError: the multiplexed model cannot be loaded.
        """
        if _changes_replica(attempt):
            raise Unimplemented(
                f"{attempt.path} would change one replica of Ray Serve alone. Change user_config of the deployment, or "
                "the model configuration file, for all replicas"
            )
        # A probe needs no credential, so it must not load or unload models.
        if attempt.access.roles is not None and (model_id := self._find_model_id()):
            # A refused client must not unload the models of others.
            CallerModels().check(model_id)
            await self._load(model_id)


def _changes_replica(attempt: Attempt) -> bool:
    if attempt.protocol == "grpc":
        return attempt.access.is_control
    path = attempt.path.lower().rstrip("/")
    return attempt.method == "POST" and path.startswith("/v2/") and not path.endswith(_READING)
