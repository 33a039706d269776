"""VersionLoader: verifies a version, loads it, warms it up and creates its batcher."""

import contextlib
import itertools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.parameters import UNSET_PARAMETERS, BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.sequences import Sequences, find_sequences
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.models.journal import Journal
from tpuserve_server.core.models.loader import AspiredVersion, LoadedVersion
from tpuserve_server.core.models.metrics import Metrics
from tpuserve_server.core.models.model_config import ModelConfig
from tpuserve_server.core.models.model_memory import ModelMemory
from tpuserve_server.core.models.response_cache import ResponseCaches, VersionResponses
from tpuserve_server.core.system.memory import mapping_allocations, total_size, trim_much_memory
from tpuserve_server.core.system.threads import run_in_background
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import DeviceLost, FailedPrecondition, InvalidArgument, counted
from tpuserve_server.core.terms.servable import Executor, Servable, VersionFiles
from tpuserve_server.core.terms.storage import Storage
from tpuserve_server.core.terms.types import ServableId, Signature
from tpuserve_server.versions.made_up_rows import Tried
from tpuserve_server.versions.manifest import Manifest, SignatureEntry
from tpuserve_server.versions.recorded_servable import RecordedServable
from tpuserve_server.versions.run_timer import RunTimer, check_objectives
from tpuserve_server.versions.sequence_trial import try_all_sequences
from tpuserve_server.versions.warmup import WarmupCount, warm_up
from tpuserve_server.versions.warmup_options import WarmupOptions

if TYPE_CHECKING:
    from tpuserve_server.versions.signatures import RequiredSignatures


# A metadata response contains all of them.
_MOST_BYTES = 1 << 20


def read_labels(version_path: Path, manifest: Manifest | None) -> tuple[str, ...]:
    """Read the names in the order of the scores. Empty if the manifest names no file, or one above 1 MiB.

    The function reads only a file that the manifest lists, because `Manifest.verify_files` has checked its path.

    Raises:
        FailedPrecondition: the file cannot be read as text.
    """
    entry = None if manifest is None or manifest.labels is None else manifest.files.get(manifest.labels)
    if manifest is None or manifest.labels is None or entry is None or entry.size_bytes > _MOST_BYTES:
        return ()
    try:
        return tuple((version_path / manifest.labels).read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise FailedPrecondition(f"{manifest.labels} cannot be read as text: {type(error).__name__}") from error


def why_not_cached(servable: Servable, manifest: Manifest | None, batched: Collection[str]) -> str:
    """Return why the server must not cache the version's responses, as a clause, or "" if it may.

    The rule is for the whole version: one signature may change the state that another one reads. `batched` names the
    signatures whose requests share batches.
    """
    entries = manifest.signatures if manifest is not None else {}
    for name, entry in entries.items():
        if not entry.deterministic:
            return f"the manifest states that signature '{name}' is not deterministic"
        if name in batched and not entry.rows_independent:
            return f"rows of other requests may change the outputs of signature '{name}', by the manifest"
    return servable.unrepeatable


_log = logging.getLogger(__name__)

_NO_SEQUENCES = "no batched signature has an input with a free dimension after the first"
# Maximum number of signature names on a line of the notes.
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class LoadingOptions:
    """Operator's options for batching, warm-up and the response cache.

    If `enable_batching` is None, the server batches only signatures that the exporter has checked (`rows_independent`).
    A free first dimension does not prove that rows are independent. True batches every signature whose inputs and
    outputs all have a free first dimension, as TensorFlow Serving does. False batches none. Sizes in `parameters`
    replace those of a manifest.

    `read_parameters`, if given, reads the parameters in a version's directory, which override `parameters`. In this
    case, `enable_batching` applies only to versions that have parameters, or whose model has them.

    `needs_sequences` is True if the version or its model sets sequence_buckets, so a signature must have sequences to
    pad. Buckets for all models apply only to models with sequences. `is_of_model` is True if the model's configuration
    has batching parameters.

    `response_cache_max_bytes` bounds the response cache of each model whose configuration has none. 0: no cache.
    """

    enable_batching: bool | None = None
    parameters: BatchingParameters = UNSET_PARAMETERS
    read_parameters: Callable[[Path], BatchingParameters | None] | None = None
    warmup: WarmupOptions = field(default_factory=WarmupOptions)
    needs_sequences: bool = False
    is_of_model: bool = False
    response_cache_max_bytes: int = 0

    def of_model(self, own: BatchingParameters | None) -> "LoadingOptions":
        """Return the options of a model whose configuration has the parameters `own`.

        Raises:
            InvalidArgument: `own` conflicts with the parameters of all models.
        """
        if own is None:
            return self
        return replace(
            self, parameters=own.over(self.parameters), is_of_model=True, needs_sequences=bool(own.sequence_buckets)
        )

    def of_version(self, path: Path) -> "LoadingOptions":
        """Return the options of the version in `path`. Blocks.

        Raises:
            InvalidArgument: the version's own parameters cannot be used.
        """
        if self.read_parameters is None:
            return self
        own = self.read_parameters(path)
        if own is not None:
            needs_sequences = self.needs_sequences or bool(own.sequence_buckets)
            return replace(self, parameters=own.over(self.parameters), needs_sequences=needs_sequences)
        if self.is_of_model or not self.enable_batching:
            return self
        return replace(self, enable_batching=None)

    def check(self, configs: Sequence[ModelConfig]) -> None:
        """Check that each model's own batching settings fit those of all models.

        Raises:
            InvalidArgument: settings conflict. The message names the first such model.
        """
        for config in configs:
            try:
                self.of_model(config.batching)
            except InvalidArgument as error:
                raise InvalidArgument(f"Model {config.name}: {error.message}") from None


class VersionLoader:
    """Loads versions with one executor. Thread-safe; keeps no state between loads, except the response caches."""

    def __init__(
        self,
        storage: Storage,
        executor: Executor,
        options: LoadingOptions,
        services: DeviceServices[Metrics],
        timeout_s: float = 0,
        signatures: "RequiredSignatures | None" = None,
        journal: Journal | None = None,
        memory: ModelMemory | None = None,
    ) -> None:
        """Create the loader. The batchers of all versions use `services`, but their watchdog ignores runs of warm-up.

        `timeout_s` is the time after which a load is given up; 0: never. A load then stops reading files. `signatures`
        refuses versions that are not signed; None: accept them. `journal` records loads and runs, and refuses those
        that ended the process. `memory` makes room for versions, and measures them.
        """
        self._storage = storage
        self._executor = executor
        self._options = options
        self._services = services
        self._clock = services.clock
        self._metrics = services.metrics
        self._timeout_s = timeout_s
        self._signatures = signatures
        self._caches = ResponseCaches()
        self._journal = journal
        self._memory = ModelMemory(services.clock) if memory is None else memory

    def load(self, aspired: AspiredVersion) -> LoadedVersion:
        """Fetch, verify, load and warm up a version. Blocks until done.

        Raises:
            ServingError: the load failed. Its resources are released.
        """
        started_s = self._clock.monotonic_s()
        try:
            return self._fetch_and_load(aspired, started_s)
        except BaseException:
            self._metrics.load_failed(
                servable=aspired.servable,
                path=str(aspired.location),
                load_s=self._clock.monotonic_s() - started_s,
            )
            raise
        finally:
            # A load may need several times the memory of its result.
            trim_much_memory()

    def _fetch_and_load(self, aspired: AspiredVersion, started_s: float) -> LoadedVersion:
        path = self._storage.fetch(aspired.location)
        try:
            return self._load(aspired, path, started_s)
        except DeviceLost as error:
            self._storage.release(path)
            if self._services.watchdog is not None:
                self._services.watchdog.lose(f"the device of {aspired.servable} is lost: {error.message}")
            raise
        except BaseException:
            self._storage.release(path)
            raise

    def unload(self, loaded: LoadedVersion) -> None:
        """Answer the queued requests, then stop the batcher and close the servable. Blocks until done."""
        if loaded.responses is not None:
            loaded.responses.close()
        try:
            loaded.batcher.stop()
            loaded.servable.close()
        finally:
            # Not in the background: it locks the allocator, and a low-priority thread could hold the lock for long.
            trim_much_memory()
            if loaded.memory is not None:
                loaded.memory.release()
            if loaded.path is not None:
                self._storage.release(loaded.path)

    def _load(self, aspired: AspiredVersion, path: Path, started_s: float) -> LoadedVersion:
        servable_id = aspired.servable
        signed = None if self._signatures is None else self._signatures.check(path, servable_id)
        manifest = Manifest.read(path) if signed is None else signed.manifest
        if manifest is not None:
            deadline = Deadline.after(self._timeout_s, self._clock) if self._timeout_s else Deadline.never()
            run_in_background(
                lambda: manifest.verify_files(path, lambda: deadline.expired(self._clock.monotonic_s())), "verify"
            )
        own_bytes = aspired.response_cache_max_bytes
        cache_bytes = self._options.response_cache_max_bytes if own_bytes is None else own_bytes
        allows_bfloat16 = manifest is not None and manifest.cpu.allow_bfloat16_kernels
        precision = None if manifest is None else manifest.precision
        labels = read_labels(path, manifest)
        options = self._options.of_model(aspired.batching).of_version(path)
        files = VersionFiles(
            path,
            allows_bfloat16=allows_bfloat16,
            is_cached=cache_bytes > 0,
            fingerprint=aspired.fingerprint,
            precision=precision,
            batch_sizes=_batch_sizes(manifest, options.parameters),
        )
        size_bytes = total_size(path, path / "variables")
        # Resources of the load. An error releases them in reverse order.
        with self._memory.loading(servable_id, files.fingerprint, size_bytes) as memory, contextlib.ExitStack() as undo:
            restore_started_s = self._clock.monotonic_s()
            servable = self._load_recorded(servable_id, files)
            restore_s = self._clock.monotonic_s() - restore_started_s
            undo.callback(servable.close)
            batching = self._try_sequences(servable, choose_batching(servable, manifest, options))
            costs = CostModel()
            load_s = self._clock.monotonic_s() - started_s
            warmed = self._warm_up(servable_id, servable, path, batching, costs)
            check_objectives(batching, costs)
            servable.serve({} if manifest is None else manifest.signatures)
            batcher = Batcher(
                BatchedVersion(servable_id, servable, batching, costs),
                options.parameters,
                self._services,
            )
            undo.callback(batcher.stop)
            self._metrics.version_loaded(
                servable=servable_id,
                path=str(aspired.location),
                costs=costs,
                load_s=load_s,
                restore_s=restore_s,
            )
            notes = _notes(servable, manifest, batching, warmed, options.parameters)
            if signed is not None:
                notes = (*notes, f"signed by {signed.signer}")
            why_not = why_not_cached(servable, manifest, batching) if cache_bytes else ""
            responses = self._open_cache(servable_id, cache_bytes, why_not, undo) if cache_bytes else None
            if cache_bytes:
                notes = (*notes, _cache_note(cache_bytes, why_not))
            evaluation = None if manifest is None else manifest.metrics
            loaded = LoadedVersion(
                servable,
                batcher,
                notes,
                path,
                costs,
                labels,
                precision,
                responses,
                load_s,
                servable.ends,
                evaluation,
                memory,
            )
            undo.pop_all()
        return loaded

    def _load_recorded(self, servable_id: ServableId, files: VersionFiles) -> RecordedServable:
        with mapping_allocations():
            if self._journal is None:
                return RecordedServable(servable_id, self._executor.load(servable_id, files), self._metrics)
            with self._journal.loading(servable_id, files.fingerprint) as entry:
                servable = self._executor.load(servable_id, files)
            return RecordedServable(servable_id, servable, self._metrics, self._journal, entry)

    def _open_cache(
        self, servable_id: ServableId, max_bytes: int, why_not: str, undo: contextlib.ExitStack
    ) -> VersionResponses | None:
        """Open the version's response cache, unless there is a reason against it. `undo` closes it."""
        if why_not:
            _log.warning("%s is served without response cache: %s", servable_id, why_not)
            return None
        responses = self._caches.open(servable_id, max_bytes)
        undo.callback(responses.close)
        self._metrics.cache_opened(servable=servable_id, responses=responses)
        return responses

    def _try_sequences(
        self, servable: Servable, batching: Mapping[str, BatchingOptions]
    ) -> Mapping[str, BatchingOptions]:
        """Try the sequences. This runs even without warm-up, because the responses depend on the result."""
        if not any(options.sequences for options in batching.values()):
            return batching
        return run_in_background(lambda: try_all_sequences(servable, batching), "sequence-trial")

    def _warm_up(
        self,
        servable_id: ServableId,
        servable: RecordedServable,
        path: Path,
        batching: Mapping[str, BatchingOptions],
        costs: CostModel,
    ) -> WarmupCount:
        """Warm up the version. Log its signatures that cannot answer.

        A version that may have ended the process runs no made-up rows: one of them may have been the reason.
        """
        options = self._options.warmup
        if not options.enabled:
            return WarmupCount()
        if servable.is_suspect:
            options = replace(options, makes_up_rows=False)
        started_s = self._clock.monotonic_s()
        # The batcher is not created in the background, because its threads would inherit the niceness.
        timer = RunTimer(costs, self._clock)
        count = run_in_background(lambda: warm_up(servable, path, batching, options, timer), "warm-up")
        duration_s = self._clock.monotonic_s() - started_s
        self._metrics.version_warmed(servable=servable_id, path=path, records=count.records, duration_s=duration_s)
        records, runs = counted(count.records, "recorded request"), counted(count.runs, "run")
        _log.info("Warmed %s: %s, %s, %.3f s", servable_id, records, runs, duration_s)
        if count.too_large:
            _log.warning("%s: %s", servable_id, _skipped(count.too_large))
        _log_tried(servable_id, count.tried)
        return count


def _skipped(too_large: int) -> str:
    return f"warm-up skipped {counted(too_large, 'recorded request')} with more rows than max_batch_size"


def _log_tried(servable_id: ServableId, tried: Tried) -> None:
    for name, reason in tried.broken.items():
        _log.warning("%s is served, but its signature %r cannot answer: %s", servable_id, name, reason)
    if tried.unknown:
        number = counted(len(tried.unknown), "signature")
        first = itertools.islice(tried.unknown.items(), _MOST_NAMED)
        reasons = "; ".join(f"{name!r}: {reason}" for name, reason in first)
        level = logging.WARNING if tried.is_late else logging.INFO
        _log.log(level, "Made-up rows do not show whether %s of %s can answer. %s", number, servable_id, reasons)


def choose_batching(
    servable: Servable, manifest: Manifest | None, options: LoadingOptions
) -> dict[str, BatchingOptions]:
    """Return the batching options of each signature to batch.

    Raises:
        InvalidArgument: sizes conflict, or the version's own sequence buckets have no sequences to pad.
    """
    if options.enable_batching is False:
        return {}
    entries = manifest.signatures if manifest is not None else {}
    chosen = {}
    for name, signature in servable.signatures.items():
        entry = entries.get(name, SignatureEntry())
        if _may_batch(signature, entry, options):
            chosen[name] = _choose(signature, entry, options.parameters)
    if options.needs_sequences and not any(one.sequences for one in chosen.values()):
        raise InvalidArgument(f"sequence_buckets cannot be used: {_NO_SEQUENCES}. Remove sequence_buckets")
    return chosen


def _batch_sizes(manifest: Manifest | None, parameters: BatchingParameters) -> tuple[int, ...]:
    exported = {} if manifest is None else manifest.signatures
    return parameters.allowed_batch_sizes or tuple(sorted({s for one in exported.values() for s in one.batch_sizes}))


def _choose(signature: Signature, entry: SignatureEntry, parameters: BatchingParameters) -> BatchingOptions:
    options = parameters.options(entry.batch_sizes)
    buckets = options.sequence_buckets
    if not buckets and not options.pad_variable_length_inputs:
        buckets = entry.sequence_buckets
    if not buckets:
        return options
    sequences = find_sequences(signature, buckets, entry.pad_values)
    return replace(options, sequences=sequences, sequence_buckets=buckets if sequences is not None else ())


def _may_batch(signature: Signature, entry: SignatureEntry, options: LoadingOptions) -> bool:
    if not signature.is_batchable:
        return False
    if options.enable_batching:
        return True
    return entry.rows_independent and bool(entry.batch_sizes)


def _notes(
    servable: Servable,
    manifest: Manifest | None,
    batching: Mapping[str, BatchingOptions],
    warmed: WarmupCount,
    parameters: BatchingParameters,
) -> tuple[str, ...]:
    unchecked = (
        ", because no manifest states that rows are independent (see --enable_batching)" if manifest is None else ""
    )
    names_by_description: dict[str, list[str]] = {}
    for name, signature in servable.signatures.items():
        if name in batching:
            treatment = _describe(batching[name], parameters.threads)
        else:
            treatment = f"one request at a time{unchecked if signature.is_batchable else ''}"
        names_by_description.setdefault(treatment, []).append(name)
    unused = parameters.sequence_buckets and not any(options.sequences for options in batching.values())
    return (
        f"device: {servable.device}",
        f"warm-up: {counted(warmed.runs, 'run')}",
        *([_skipped(warmed.too_large)] if warmed.too_large else []),
        *(
            f"{name} cannot answer: {reason}"
            for name, reason in itertools.islice(warmed.tried.broken.items(), _MOST_NAMED)
        ),
        *([f"the server ignores sequence_buckets: {_NO_SEQUENCES}"] if unused else []),
        *_by_signatures(names_by_description),
    )


def _cache_note(max_bytes: int, why_not: str) -> str:
    return f"no response cache: {why_not}" if why_not else f"response cache: up to {max_bytes} bytes of its model"


def _by_signatures(names_by_description: Mapping[str, list[str]]) -> list[str]:
    """Return a line for each description, the most common last. Many signatures become a count without names."""
    described = sorted(names_by_description.items(), key=lambda item: len(item[1]))
    subjects = [", ".join(names) for _, names in described]
    if described and len(described[-1][1]) > _MOST_NAMED:
        subjects[-1] = f"{'the other' if len(described) > 1 else 'all'} {len(described[-1][1])} signatures"
    return [f"{subject}: {description}" for subject, (description, _) in zip(subjects, described, strict=True)]


def _describe(options: BatchingOptions, threads: int) -> str:
    # The last size is the one before the noun.
    *smaller, largest = options.buckets or (options.max_rows,)
    sizes = "".join(f"{size}, " for size in smaller) if options.buckets else "up to "
    parts = [f"batches of {sizes}{counted(largest, 'row')}"]
    if options.timeout_s:
        parts.append(f"full or after {options.timeout_s * 1000:g} ms")
    if options.objective is not None:
        within_ms = options.objective.latency_s * 1000
        parts.append(f"{options.objective.percentile:g} % of requests within {within_ms:g} ms")
    if options.splits:
        parts.append(f"requests of up to {counted(options.max_batch_size, 'row')} split over several batches")
    if options.pad_variable_length_inputs:
        parts.append("rows padded to one shape")
    if options.sequences is not None:
        parts.append(_describe_sequences(options.sequences))
    if threads > 1:
        parts.append(f"{threads} batches at a time")
    return ", ".join(parts)


def _describe_sequences(sequences: Sequences) -> str:
    padded = f"lengths padded to {', '.join(str(length) for length in sequences.buckets)}"
    if not sequences.uncut:
        return padded
    return f"{padded} ({' and '.join(str(axis) for axis in sequences.uncut)} unpadded by the model)"
