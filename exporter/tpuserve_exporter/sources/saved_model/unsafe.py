"""Finds and refuses operations of a SavedModel that a server would refuse."""

from collections.abc import Collection
from pathlib import Path

from tpuserve_exporter.errors import SourceUnreadable, UnsafeOperation
from tpuserve_exporter.sources.saved_model.file import read_saved_model
from tpuserve_exporter.sources.unsafe_operations import PYTHON, refuse
from tpuserve_formats.errors import FormatError
from tpuserve_formats.safety.screening import BadAsset, Finding, screen_saved_model


def find_unsafe(saved_model: Path) -> list[Finding]:
    """Return the operations of a SavedModel's directory that servers refuse.

    Raises:
        SourceUnreadable: if the graph is missing or damaged.
        UnsafeOperation: if it names files outside the directory.
    """
    from google.protobuf.message import DecodeError

    binary = saved_model / "saved_model.pb"
    try:
        return screen_saved_model(
            binary.read_bytes() if binary.is_file() else read_saved_model(saved_model).SerializeToString()
        )
    except (FormatError, DecodeError) as error:
        raise SourceUnreadable(f"cannot read {saved_model.name}: it is truncated or not a SavedModel") from error
    except BadAsset as error:
        raise UnsafeOperation(f"{saved_model.name} is unsafe: {error}. Save the model again") from error


def check_source(source: Path, allowed: Collection[str]) -> None:
    """Check a SavedModel before it is loaded, except for Python functions. Raises as `find_unsafe`."""
    refuse(source.name, find_unsafe(source), {*allowed, *PYTHON})


def check_version(version: Path, allowed: Collection[str]) -> list[Finding]:
    """Return the operations of a version that only `allowed` permits. Raises UnsafeOperation for others."""
    findings = find_unsafe(version)
    refuse("the version", findings, allowed)
    return findings
