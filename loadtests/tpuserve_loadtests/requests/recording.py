"""Recorded requests from the server's request log (TFRecord or JSON lines), warm-up files and version directories."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Self

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from tpuserve_client import dtypes, tensor
from tpuserve_client.dtypes import describe
from tpuserve_client.exchange import Exchange, PredictCall
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec, Signature, TensorSpec
from tpuserve_formats.counted import counted
from tpuserve_formats.messages import official
from tpuserve_formats.tensor_proto import decode_tensor
from tpuserve_formats.tf_record import CutShort, WrongChecksum, read_records
from tpuserve_loadtests.requests.arrays import BadInput, has_rows, suits
from tpuserve_loadtests.requests.protocols import Protocol
from tpuserve_loadtests.requests.wires import predict_exchange


@dataclass(frozen=True, slots=True)
class Logged:
    """A Predict request of a log.

    `time_s` is in whole Unix seconds. `sampled` is the logged share of requests, or 0 if the log does not state it.
    `inputs` is an encoded PredictRequest without its model_spec, so it holds the inputs and the output filter. `answer`
    is an encoded PredictResponse, and empty if it is missing or not requested.
    """

    model: str
    signature_name: str
    time_s: int
    sampled: float
    inputs: bytes
    answer: bytes = b""


def read_prediction_log(record: bytes, *, with_answer: bool = False) -> Logged | None:
    """Return the request of a PredictionLog, or None for a log without a Predict request.

    Raises ValueError for other bytes.
    """
    try:
        return _logged(official.PredictionLog.FromString(record), with_answer)
    except DecodeError as error:
        raise ValueError(f"a record is not a PredictionLog: {error}") from None


def read_json_log(line: bytes) -> Logged | None:
    """Return the request of a line, or None for a line without a Predict request.

    Raises ValueError for an invalid line.
    """
    try:
        document = json.loads(line)
        metadata, predict = document.get("log_metadata", {}), {**document.get("predict_log", {}), "response": None}
        log = official.PredictionLog()
        json_format.ParseDict({"log_metadata": metadata, "predict_log": predict}, log, ignore_unknown_fields=True)
        for proto in log.predict_log.request.inputs.values():
            proto.CopyFrom(tensor.to_proto(decode_tensor(proto)))
        return _logged(log)
    except (ValueError, TypeError, AttributeError, json_format.ParseError, RecursionError, OverflowError) as error:
        raise ValueError(f"a line is not a PredictionLog: {type(error).__name__}: {error}") from None


def _logged(log: official.PredictionLog, with_answer: bool = False) -> Logged | None:
    """Return the request of a log, which loses its model_spec."""
    if not log.predict_log.HasField("request"):
        return None
    metadata, request = log.log_metadata, log.predict_log.request
    model, signature_name = request.model_spec.name, request.model_spec.signature_name
    request.ClearField("model_spec")
    return Logged(
        model,
        signature_name,
        metadata.timestamp_secs,
        metadata.sampling_config.sampling_rate,
        request.SerializeToString(deterministic=True),
        log.predict_log.response.SerializeToString(deterministic=True) if with_answer else b"",
    )


# Recordings are held in memory.
MAX_BYTES: Final = 2 * 2**30


class BadRecording(ValueError):
    """Error for a file that is not a recording, or that lacks the requested content."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Requests ordered by time. `notes` describe limitations for the reader."""

    title: str
    logged: tuple[Logged, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def read(cls, paths: Sequence[Path], *, with_answers: bool = False) -> Self:
        """Read the files together, ordered by time. Ignore an incomplete record at the end of a file.

        Only TFRecords contain responses. Raises BadRecording.
        """
        notes: list[str] = []
        title = ", ".join(path.name for path in paths)
        if sum(path.stat().st_size for path in paths) > MAX_BYTES:
            raise BadRecording(f"{title}: The files exceed {MAX_BYTES >> 30} GiB. Set fewer files.")
        records = [logged for path in paths for logged in _records(path, notes, with_answers)]
        found = [logged for logged in records if logged is not None]
        if others := len(records) - len(found):
            notes.append(f"{title}: skipped {counted(others, 'record')} of other kinds than predict")
        if not found:
            raise BadRecording(f"{title} contains no predict request.")
        return cls(title, tuple(sorted(found, key=lambda logged: logged.time_s)), tuple(notes))

    def of_model(self, model: str) -> Self:
        """Return the requests for a model, and those without a model name, as in warm-up files.

        Raises BadRecording if there are none.
        """
        kept = [logged for logged in self.logged if logged.model in ("", model)]
        models = Counter(logged.model for logged in self.logged)
        if not kept:
            raise BadRecording(
                f"{self.title} has requests for {', '.join(sorted(models))}, but none for {model}. "
                "Select the model with --recorded-model (recorded_model in a scenario)."
            )
        return self._kept(kept, f"for other models than {model}")

    def of_signature(self, signature: str, default: str) -> Self:
        """Return the requests for a signature. Raises BadRecording if there are none."""
        kept = [logged for logged in self.logged if (logged.signature_name or default) == signature]
        if not kept:
            others = sorted({logged.signature_name or default for logged in self.logged})
            raise BadRecording(f"{self.title} has requests for {', '.join(others)}, but none for {signature}.")
        return self._kept(kept, f"for other signatures than {signature}")

    def instants(self) -> tuple[float, ...] | None:
        """Return the arrival times in Unix seconds, or None if any request has no time, as in a warm-up file.

        Recorded times are whole seconds. The requests of a second are spread evenly over it.
        """
        if not all(logged.time_s for logged in self.logged):
            return None
        in_second = Counter(logged.time_s for logged in self.logged)
        seen: Counter[int] = Counter()
        instants = []
        for logged in self.logged:
            instants.append(logged.time_s + (seen[logged.time_s] + 0.5) / in_second[logged.time_s])
            seen[logged.time_s] += 1
        return tuple(instants)

    @property
    def sampled(self) -> float:
        """The recorded share of the real requests, or 1 if the recording does not state it."""
        return len(self.logged) / sum(1 / (logged.sampled or 1.0) for logged in self.logged)

    def _kept(self, kept: list[Logged], reason: str) -> Self:
        skipped = len(self.logged) - len(kept)
        note = f"{self.title}: skipped {counted(skipped, 'request')} {reason}"
        return replace(self, logged=tuple(kept), notes=(*self.notes, note) if skipped else self.notes)


def _records(path: Path, notes: list[str], with_answers: bool) -> list[Logged | None]:
    records: list[Logged | None] = []
    try:
        with path.open("rb") as file:
            # The first eight bytes of a TFRecord are a length, whose last byte is zero. JSON contains no zero byte.
            start = file.peek(8)[:8]
            is_json = start.startswith(b"{") and b"\0" not in start
            read = read_json_log if is_json else partial(read_prediction_log, with_answer=with_answers)
            for record in _lines(file) if is_json else read_records(file, refuse_rest=True):
                records.append(read(record))  # noqa: PERF401  what came before a cut is kept
    except CutShort:
        notes.append(
            f"{path.name}: skipped an incomplete record at the end; the file is truncated, or still being written"
        )
    except OSError as error:
        raise BadRecording(f"{path}: {error.strerror}") from None
    except WrongChecksum as error:
        kinds = "the file is damaged, or not TFRecord or JSON lines"
        raise BadRecording(f"{path}: record {len(records) + 1}: {error}: {kinds}") from None
    except ValueError as error:
        raise BadRecording(f"{path}: record {len(records) + 1}: {error}") from None
    return records


def _lines(file: Iterable[bytes]) -> Iterator[bytes]:
    for line in file:
        if not line.endswith(b"\n"):
            raise CutShort
        if line.strip():
            yield line


# Path within a SavedModel (saved_model_warmup_util.h of TensorFlow Serving).
WARMUP_FILE: Final = Path("assets.extra/tf_serving_warmup_requests")


def read_golden_version(version: Path) -> Recording:
    """Return the requests with responses. The directory determines their model, whatever name they contain.

    Raises BadRecording with a remedy.
    """
    path = version / WARMUP_FILE
    if not path.is_file():
        raise BadRecording(f"{version} contains no recorded requests ({WARMUP_FILE}). {_instead(version)}")
    recording = Recording.read([path], with_answers=True)
    with_response = tuple(replace(logged, model="") for logged in recording.logged if logged.answer)
    if not with_response:
        raise BadRecording(
            f"{version}: The {len(recording.logged)} recorded requests have no responses. Record responses of the "
            f"server before the load, with --golden record --recorded {path} --users 32"
        )
    skipped = len(recording.logged) - len(with_response)
    without = (f"{version}: skipped {counted(skipped, 'recorded request')} without a response",) if skipped else ()
    return Recording(str(version), with_response, (*recording.notes, *without))


def _instead(folder: Path) -> str:
    versions = sorted((each.name for each in folder.iterdir() if each.name.isdigit()), key=int)
    if versions:
        return f"Set one of its versions, such as {folder / versions[-1]}."
    return "Set a version directory with recorded requests, such as /models/digits/8, or --golden record."


@dataclass(frozen=True, slots=True)
class Timeline:
    """A merged timeline. `instants` count seconds from the first request, and `order` holds the line of each request.

    `notes` describe samples.
    """

    instants: tuple[float, ...]
    order: tuple[int, ...]
    notes: tuple[str, ...] = ()


def merged_timeline(recordings: Sequence[tuple[Recording, int]], speed: float = 1.0) -> Timeline:
    """Merge recordings, `speed` times as fast as recorded. Each comes with the number of lines that share its requests.

    Raises BadRecording if times are missing, or for a single request.
    """
    arrivals: list[tuple[float, int]] = []
    first_line = 0
    for recording, lines in recordings:
        instants = recording.instants()
        if instants is None:
            raise BadRecording(f"{recording.title} has no request times. Set the load with --rate or --users.")
        arrivals += [(instant, first_line + number % lines) for number, instant in enumerate(instants)]
        first_line += lines
    arrivals.sort()
    if len(arrivals) < 2:
        raise BadRecording(f"{recordings[0][0].title} has only one request. Set the load with --rate or --users.")
    start_s = arrivals[0][0]
    return Timeline(
        tuple((instant - start_s) / speed for instant, _ in arrivals),
        tuple(line for _, line in arrivals),
        tuple(_sample_note(recording, speed) for recording, _ in recordings if recording.sampled < 1),
    )


def _sample_note(recording: Recording, speed: float) -> str:
    sampled = recording.sampled
    return (
        f"{recording.title} is a sample of {100 * sampled:.3g} %: with --speed {speed:g}, requests arrive at "
        f"{sampled * speed:.3g} of the real rate (--speed {1 / sampled:.3g} restores the real rate)"
    )


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A recorded request with `inputs` as in Logged. `golden` is the recorded response, if any."""

    inputs: bytes
    signature_name: str
    rows: int
    golden: bytes = b""
    output_filter: tuple[str, ...] = ()

    def exchange(self, spec: ModelSpec, protocol: Protocol) -> Exchange:
        """Return the request for a protocol.

        gRPC keeps the recorded bytes except the model and version. The other protocols use the client's encoding.
        """
        if protocol == "grpc":
            head = GrpcWire().predict(PredictCall(spec, {}, self.signature_name))
            # Concatenated protobuf messages parse as one message.
            return Exchange(head.path, head.body + self.inputs)
        message = official.PredictRequest.FromString(self.inputs)
        arrays = {name: tensor.from_proto(proto) for name, proto in message.inputs.items()}
        return predict_exchange(protocol, spec, arrays, self.signature_name, self.output_filter)


def recorded_requests(recording: Recording, signature: Signature) -> Iterator[RecordedRequest]:
    """Yield the requests of the signature after validation. Raises BadInput."""
    with_rows = has_rows(signature)
    for number, logged in enumerate(recording.logged, start=1):
        try:
            message = official.PredictRequest.FromString(logged.inputs)
            rows = _rows(message, signature)
            _check_answer(logged.answer, signature)
        except (DecodeError, BadInput) as error:
            raise BadInput(f"{recording.title}: request {number}: {error}") from None
        chosen = tuple(message.output_filter)
        yield RecordedRequest(logged.inputs, signature.name, rows if with_rows else 1, logged.answer, chosen)


def _check_answer(answer: bytes, signature: Signature) -> None:
    outputs = official.PredictResponse.FromString(answer).outputs
    if outputs.keys() - signature.outputs.keys():
        raise BadInput(
            f"the model's outputs are {sorted(signature.outputs)}; the recorded response has {sorted(outputs)}"
        )


def _rows(message: official.PredictRequest, signature: Signature) -> int:
    if message.inputs.keys() != signature.inputs.keys():
        raise BadInput(
            f"the model's inputs are {sorted(signature.inputs)}; the recorded request has {sorted(message.inputs)}"
        )
    shapes = [_shape(proto, signature.inputs[name]) for name, proto in message.inputs.items()]
    return shapes[0][0] if shapes and shapes[0] else 1


def _shape(proto: official.TensorProto, spec: TensorSpec) -> tuple[int, ...]:
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    dtype = dtypes.from_wire(proto.dtype)
    if not suits(shape, spec.shape) or (spec.dtype is not None and dtype != spec.dtype):
        raise BadInput(f"the model's input is {spec}; the recorded request has {describe(dtype)}{list(shape)}")
    return shape
