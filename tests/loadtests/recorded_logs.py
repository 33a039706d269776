"""Request logs and warm-up files, written by the server's own code."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tpuserve_client.dtypes import STRING, Array
from tpuserve_formats.messages import official
from tpuserve_formats.tensor_proto import encode_tensor
from tpuserve_loadtests.requests.wires import encode_golden
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.observe.options import LogFormat
from tpuserve_server.observe.request_log.writer import LogEntry, LogKind, LogTarget, open_record_file

if TYPE_CHECKING:
    from tpuserve_server.observe.options import LogFormat

MODEL = "doubling"
START_S = 1_700_000_000


def predict_entry(
    inputs: dict[str, Array],
    time_s: float = 0.0,
    *,
    model: str = MODEL,
    signature: str = "serving_default",
    sampled: float = 1.0,
    kind: LogKind = LogKind.PREDICT,
    typed: bool = False,
    outputs: dict[str, Array] | None = None,
) -> LogEntry:
    """Return a log entry of a prediction, made by the server's code. `time_s` 0 means no time, as in warm-up files.

    `typed` stores tensors in fields such as float_val, like TensorFlow's own clients. `outputs` is the response, if
    any.
    """
    request = official.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = model, signature
    request.model_spec.version.value = 7
    for name, array in inputs.items():
        tensor = encode_tensor(array, as_content=not typed and array.dtype != STRING)
        request.inputs[name].ParseFromString(tensor)
    target = LogTarget("unused", "jsonl", sampled)
    payloads = request.SerializeToString(), encode_golden(outputs) if outputs else b""
    return LogEntry(target, kind, ServableId(model, 7), signature, *payloads, time_s, 0)


def numbered(value: float, rows: int = 1) -> dict[str, Array]:
    """Return distinguishable inputs of the doubling model."""
    return {"x": np.full((rows, 4), value, np.float32)}


def write_log(path: Path, entries: Iterable[LogEntry]) -> Path:
    """Write the entries to a file, in the format of its suffix."""
    log_format: LogFormat = "jsonl" if path.suffix == ".jsonl" else "tfrecord"
    file = open_record_file(path, log_format)
    for entry in entries:
        file.write(entry.serialize())
    file.close()
    return path
