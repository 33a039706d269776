"""Mirror: keeps the registry of a front-end process equal to that of the engine."""

import pickle
import threading
from collections.abc import Mapping, Sequence

from tpuserve_server.core.deadline import Clock
from tpuserve_server.core.errors import Internal
from tpuserve_server.core.loader import LoadedVersion
from tpuserve_server.core.model_record import ModelRecord, VersionRecord
from tpuserve_server.core.registry import ModelRegistry
from tpuserve_server.core.servable import InFlight
from tpuserve_server.core.types import Signature, Tensors
from tpuserve_server.link.connection import Connection
from tpuserve_server.link.forecasts import Forecasts
from tpuserve_server.link.messages import Kind
from tpuserve_server.link.state import EngineState, VersionFacts
from tpuserve_server.link.tasks import RemoteBatcher, TaskLink


class Mirror:
    """The front-end's side of StatePublisher. The event loop's thread owns it."""

    def __init__(
        self, connection: Connection, registry: ModelRegistry, tasks: TaskLink, forecasts: Forecasts, clock: Clock
    ) -> None:
        """Adopt states into `registry`. The caller registers `adopt` for Kind.STATE."""
        self._connection = connection
        self._registry = registry
        self._tasks = tasks
        self._forecasts = forecasts
        self._clock = clock
        # The versions in use, by key.
        self._records: dict[int, VersionRecord] = {}
        self.engine_only: frozenset[str] = frozenset()
        self.is_oip_in_engine = False

    def adopt(self, payload: memoryview) -> None:
        """Adopt a state."""
        state: EngineState = pickle.loads(payload)
        self.engine_only, self.is_oip_in_engine = state.engine_only, state.is_oip_in_engine
        self._fill(state)
        for ended in self._registry.adopt(state.models, state.configured, is_closed=state.is_closed):
            key = next(key for key, record in self._records.items() if record is ended)
            del self._records[key]
            threading.Thread(target=self._release, args=[key, ended], name="release-version", daemon=True).start()
        self._connection.send(Kind.ADOPTED, b"%d" % state.number)

    def _fill(self, state: EngineState) -> None:
        """Put the versions that serve into the records of `state`."""
        for (name, number), key in state.keys.items():
            versions = state.models[name].versions
            record = self._records.get(key)
            if record is None:
                record = self._records[key] = versions[number]
                record.loaded = self._load(key, state.new[key])
            versions[number] = record
        for model in state.models.values():
            _find_latest(model)

    def _load(self, key: int, facts: VersionFacts) -> LoadedVersion:
        batcher = RemoteBatcher(key, facts.queue, self._tasks, self._forecasts, self._clock)
        servable = _EngineServable(facts.signatures, facts.device)
        return LoadedVersion(servable, batcher, labels=facts.labels, precision=facts.precision)

    def _release(self, key: int, record: VersionRecord) -> None:
        """Wait for the last request on a version, and report it. Runs on its own thread."""
        self._registry.wait_idle(record)
        self._connection.send_from_thread(Kind.RELEASED, b"%d" % key)


class _EngineServable:
    """The signatures of a version. Only the engine runs it. Implements Servable."""

    max_in_flight = 1
    never_blocks = False
    unrepeatable = ""

    def __init__(self, signatures: Mapping[str, Signature], device: str) -> None:
        self.signatures = signatures
        self.device = device

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        raise Internal("A front-end process runs no model")

    def close(self) -> None: ...


def _find_latest(model: ModelRecord) -> None:
    """Set the latest version that serves, which the copy of a record does not contain."""
    serving = [number for number, version in model.versions.items() if version.loaded is not None]
    model.latest = model.versions[max(serving)] if serving else None
