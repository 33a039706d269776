"""Recorded requests from the server's request log, as TFRecord or JSON lines, and from warm-up files (TFRecord)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Self

from tpuserve_formats.counted import counted
from tpuserve_formats.tf_record import CutShort, WrongChecksum, read_records
from tpuserve_loadtests.recording.json_log import read_json_log
from tpuserve_loadtests.recording.prediction_log import Logged, read_prediction_log

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
