"""RequestLogs: selects the requests to log and their destination."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from urllib.parse import quote

from tpuserve_server.core.models.model_config import ModelConfig
from tpuserve_server.core.terms.errors import InvalidArgument, NotFound
from tpuserve_server.core.terms.types import PredictResult, ServableId, Tensors
from tpuserve_server.observe.options import LogFormat, RequestLogOptions
from tpuserve_server.observe.request_log.writer import LogEntry, LogKind, LogTarget, LogWriter, Payload
from tpuserve_server.wire.predict_proto import encode_predict_request, encode_predict_response

_FORMATS: Mapping[str, LogFormat] = {"jsonl": "jsonl", "tfrecord": "tfrecord"}


class RequestLogs:
    """Chooses requests by their model's sampling rate. Thread-safe: `_targets` is replaced, and never changed."""

    def __init__(
        self, options: RequestLogOptions, writer: LogWriter, sample: Callable[[], float] = random.random
    ) -> None:
        """Log no requests until `configure`. `sample` draws from [0, 1)."""
        self._options = options
        self._writer = writer
        self._sample = sample
        self._targets: Mapping[str, LogTarget] = {}

    def check(self, configs: Sequence[ModelConfig]) -> None:
        """Raise the errors of `configure`, and change nothing."""
        for config in configs:
            self._target(config)

    def configure(self, configs: Sequence[ModelConfig]) -> None:
        """Log these models from now on. Models without a LoggingConfig use the options. An error changes no target.

        Raises:
            InvalidArgument: a sampling rate is out of range, or a prefix is missing.
            NotFound: a type is unknown. The message is upstream's (core/log_collector.cc).
        """
        targets = {config.name: self._target(config) for config in configs}
        self._targets = {name: target for name, target in targets.items() if target and target.sampling_rate > 0}
        self._writer.keep(frozenset(self._targets.values()))

    def has_log(self, model: str) -> bool:
        """Return whether requests for the model may be logged."""
        return model in self._targets

    def choose(self, model: str) -> LogTarget | None:
        """Return the destination of this request, or None if it is not drawn. Cheap for a model that is not logged."""
        target = self._targets.get(model)
        return target if target is not None and self._sample() < target.sampling_rate else None

    def add(
        self,
        target: LogTarget,
        kind: LogKind,
        servable: ServableId,
        signature: str,
        request: Payload,
        response: Payload,
        *,
        size_bytes: int = 0,
    ) -> None:
        """Log an answered request. Never blocks: if the queue is full, the entry is dropped and counted.

        `size_bytes` is the memory of payloads that are not serialized yet.
        """
        size_bytes += sum(len(payload) for payload in (request, response) if not callable(payload))
        self._writer.add(LogEntry(target, kind, servable, signature, request, response, time.time(), size_bytes))

    def add_predict(self, target: LogTarget, inputs: Tensors, result: PredictResult, *, size_bytes: int) -> None:
        """Log a prediction of another protocol in gRPC's messages, which the log's thread creates.

        `size_bytes` is the memory of the arrays. The size of the request and the response is a good estimate.
        """
        request = partial(encode_predict_request, result.servable, result.signature_name, inputs)
        response = partial(encode_predict_response, result)
        self.add(
            target,
            LogKind.PREDICT,
            result.servable,
            result.signature_name,
            request,
            response,
            size_bytes=size_bytes,
        )

    def _target(self, config: ModelConfig) -> LogTarget | None:
        model, logging, options = config.name, config.logging, self._options
        if logging is None:
            if options.path_prefix is None:
                return None
            # Each model has a separate file, because warm-up reads one model's records.
            return LogTarget(f"{options.path_prefix}-{quote(model, safe='')}", options.format, options.sampling_rate)
        log_format = _FORMATS.get(logging.type or options.format)
        if log_format is None:
            raise NotFound(f"Cannot find LogCollector::Factory for type: {logging.type}")
        if not logging.filename_prefix:
            raise InvalidArgument(f"Model {model}: logging_config requires a filename_prefix in log_collector_config")
        if not 0 <= logging.sampling_rate <= 1:
            raise InvalidArgument(f"Model {model}: sampling_rate {logging.sampling_rate} is not between 0 and 1")
        return LogTarget(logging.filename_prefix, log_format, logging.sampling_rate)
