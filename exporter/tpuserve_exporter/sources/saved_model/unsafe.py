"""Finds and refuses operations of a SavedModel that a server would refuse."""

from collections.abc import Collection
from pathlib import Path

from tpuserve_exporter.errors import SourceUnreadable, UnsafeOperation
from tpuserve_exporter.sources.saved_model.file import read_content
from tpuserve_exporter.sources.unsafe_operations import PYTHON, refuse
from tpuserve_formats.errors import FormatError
from tpuserve_formats.safety.screening import BadAsset, Finding, screen_saved_model


def find_unsafe(saved_model: Path) -> list[Finding]:
    """Return the operations of a SavedModel's directory that servers refuse.

    Raises:
        SourceUnreadable: if the graph is missing or damaged.
        UnsafeOperation: if it names files outside the directory.
    """
    return _find_unsafe(saved_model.name, read_content(saved_model))


def _find_unsafe(name: str, content: bytes) -> list[Finding]:
    from google.protobuf.message import DecodeError

    try:
        return screen_saved_model(content)
    except (FormatError, DecodeError) as error:
        raise SourceUnreadable(f"cannot read {name}: it is truncated or not a SavedModel") from error
    except BadAsset as error:
        raise UnsafeOperation(f"{name} is unsafe: {error}. Save the model again") from error


def check_source(name: str, content: bytes, allowed: Collection[str]) -> None:
    """Check a serialized SavedModel before it is loaded, except for Python functions. Raises as `find_unsafe`."""
    refuse(name, _find_unsafe(name, content), {*allowed, *PYTHON})


def check_version(version: Path, allowed: Collection[str]) -> list[Finding]:
    """Return the operations of a version that only `allowed` permits. Raises UnsafeOperation for others."""
    findings = find_unsafe(version)
    refuse("the version", findings, allowed)
    return findings
