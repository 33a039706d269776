"""Why an export ends without a new version. Each kind has its own exit code; `tpuserve export --help` lists them.

ExportError                 1   (nothing more exact is known)
├── CheckpointMismatch      2   the checkpoint does not fit the builder's model
├── OptionConflict          2   options that do not go together
├── ParityFailed            3   the SavedModel answers otherwise than the source model, or than an example expects
├── TrainingMode            3   an answer depends on batch statistics, random numbers or on requests before
├── CannotLower             4   an operation that what was asked for cannot have
├── PublishFailed           5   the version is taken, or the base directory cannot be written
├── SourceUnreadable        6   not there, of no known kind, truncated, a shard missing
├── BuilderFailed           7   --model cannot be imported, raises, or returns no model
├── SessionLoadFailed       8   the SavedModel does not load in a session, as a server loads it
├── SamplesUnfit            9   no inputs to check with: --check, --warmup or --example does not fit the signature
├── MissingExtra           10   the source's framework is not installed
├── UnsafeSource           11   reading it would run code that came with it
└── WeightsNotFinite       12   weights that are NaN or infinite
"""

import re
from typing import Any, ClassVar

# Exit code of an interrupted command, as a shell reports a process that SIGINT ended.
BROKEN_OFF = 130

# What TensorFlow puts around the sentence that says what went wrong.
_FRAME = re.compile(
    r"\s*(Graph execution error:|<stack traces unavailable>|Detected at node|Node: '|\[\[|Errors may have|"
    r"Original stack|\d+ successful)"
)

# And what it puts into that sentence when an operation runs eagerly.
_EAGER = re.compile(r"\{\{function_node __wrapped__\S*\}\} | \[Op:\w+\]")
# What begins an error in a function that AutoGraph converted; the error itself comes last, after lines of code.
_TRACED = "in user code:"


class ExportError(Exception):
    """An export that failed; nothing was published. `details` go into the JSON report as they are."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, **details: Any) -> None:  # noqa: ANN401 - any JSON value
        super().__init__(message)
        self.details = details

    @property
    def kind(self) -> str:
        return type(self).__name__


class CheckpointMismatch(ExportError):
    exit_code = 2


class OptionConflict(ExportError):
    exit_code = 2


class ParityFailed(ExportError):
    exit_code = 3


class TrainingMode(ExportError):
    exit_code = 3


class CannotLower(ExportError):
    exit_code = 4


class PublishFailed(ExportError):
    exit_code = 5


class SourceUnreadable(ExportError):
    exit_code = 6


class BuilderFailed(ExportError):
    exit_code = 7


class SessionLoadFailed(ExportError):
    exit_code = 8


class SamplesUnfit(ExportError):
    exit_code = 9


class MissingExtra(ExportError):
    exit_code = 10


class UnsafeSource(ExportError):
    exit_code = 11


class WeightsNotFinite(ExportError):
    exit_code = 12


def reason_of(error: Exception) -> str:
    """The one line of another library's error that says what went wrong; the error's name where it says nothing."""
    text = _EAGER.sub("", str(getattr(error, "message", None) or error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines[:1] == [_TRACED]:
        return re.sub(r"^\w+Error: ", "", lines[-1])
    return next((line for line in lines if not _FRAME.match(line)), type(error).__name__)
