"""Errors that end a command of the exporter without a result. Each has an exit code, which its --help lists.

ExportError                 1   any other error
├── CheckpointMismatch      2   the checkpoint does not fit the builder's model
├── OptionConflict          2   the options contradict each other or the source
├── ParityFailed            3   the SavedModel's answers differ from those of the source model or of an example
├── TrainingMode            3   an answer depends on batch statistics, random numbers or earlier requests
├── CannotLower             4   the requested format does not support an operation
├── PublishFailed           5   the version exists, or the base directory cannot be written
├── SourceUnreadable        6   missing, of an unknown kind, or truncated
├── BuilderFailed           7   --model cannot be imported, raises, or returns no model
├── SessionLoadFailed       8   the SavedModel does not load in a session, as a server loads it
├── SamplesUnfit            9   --check, --warmup or --example does not fit the signature, or no inputs can be made
├── MissingExtra           10   the source's framework is not installed
├── UnsafeSource           11   reading the source would run code that it contains
├── WeightsNotFinite       12   weights are NaN or infinite
├── UnsafeOperation        13   the graph reads or writes files, runs Python, or has unknown operations
└── ExpectationFailed      14   a metric of the version on --labelled does not meet its --expect
"""

import re
from typing import Any, ClassVar

# Exit code of an interrupted command: a shell reports the same code for a process that SIGINT ended.
BROKEN_OFF = 130

# Lines that TensorFlow puts around the sentence with the cause.
_FRAME = re.compile(
    r"\s*(Graph execution error:|<stack traces unavailable>|Detected at node|Node: '|\[\[|Errors may have|"
    r"Original stack|\d+ successful|File \")"
)

# Text that TensorFlow puts into that sentence when an operation runs eagerly.
_EAGER = re.compile(r"\{\{function_node __wrapped__\S*\}\} | \[Op:\w+\]")
# First line of an error in a function that AutoGraph converted. The error itself comes last, after lines of code.
_TRACED = "in user code:"


class ExportError(Exception):
    """A failed export, which published nothing. The JSON report contains `details` unchanged."""

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


class NotChecked(ExportError):
    exit_code = 4


class DoesNotFit(ExportError):
    exit_code = 4


class ManifestUnfit(ExportError):
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


class UnsafeOperation(ExportError):
    exit_code = 13


class ExpectationFailed(ExportError):
    exit_code = 14


# First line of an error in a Keras layer. Keras then prints the error itself, in bold.
_IN_LAYER = re.compile(r"Exception encountered when calling (.+?)\.?$")
_BOLD = re.compile(r"\x1b\[\d+m")


def reason_of(error: Exception) -> str:
    """Return the line of another library's error that states the cause, or the error's class name if it has no text."""
    text = _EAGER.sub("", str(getattr(error, "message", None) or error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and (layer := _IN_LAYER.fullmatch(lines[0])):
        return f"{layer[1]}: {_BOLD.sub('', lines[1])}"
    if lines[:1] == [_TRACED]:
        return re.sub(r"^\w+Error: ", "", lines[-1])
    return next((line for line in lines if not _FRAME.match(line)), type(error).__name__)
