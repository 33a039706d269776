"""The Python API: `export(model, "models/digits")` at the end of a training script or in a notebook.

The options have the names of the command's options, and the command parses them. The import of this module imports
neither TensorFlow nor the command.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tpuserve_exporter.errors import ExportError, OptionConflict

if TYPE_CHECKING:
    from tpuserve_exporter.options.export_options import ExportOptions
    from tpuserve_exporter.reports.shown_progress import RecordedProgress
    from tpuserve_exporter.stages.job import Exported

# Arrays by input name, or a file of them.
Samples: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
# Pairs of an input and its expected answer. An input is a file, `text:…`, `json:…`, bytes of a file, an array, or
# arrays by name. An answer is a label, a class number, or outputs.
Examples: TypeAlias = Iterable[tuple[Any, Any]] | Mapping[Any, Any]


@dataclass(frozen=True, slots=True)
class ExportedVersion:
    """A version that passed every check. `version` and `path` are None after a dry run.

    If `published` is false after a normal run, an existing version has the same contents, and `version` and `path` name
    that version. `report` is the report that `--json` prints. A notebook displays the version's checks.
    """

    name: str
    version: int | None
    path: str | None
    published: bool
    warnings: tuple[str, ...]
    report: Mapping[str, Any]

    def save_report(self, path: str | os.PathLike[str]) -> None:
        """Write the report as an HTML page if the name ends in .html, else as JSON. Raises OSError."""
        from tpuserve_exporter.reports.reporter import write_report

        write_report(Path(path), self.report)

    def __repr__(self) -> str:
        outcome = "checked, not published" if self.version is None else f"version {self.version} at {self.path}"
        difference = self.report["manifest"]["parity"]["max_abs_difference"]
        return f"<{self.name}: {outcome}, largest difference {difference:.3g}, {len(self.warnings)} warning(s)>"

    def _repr_html_(self) -> str:
        from tpuserve_exporter.reports.facts import render_compact

        return render_compact(self.report)


def export(
    source: object,
    out_base: str | os.PathLike[str],
    /,
    *,
    check: Samples | None = None,
    warmup: Samples | None = None,
    labelled: Samples | None = None,
    examples: Examples = (),
    report: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    progress: bool = True,
    **options: object,
) -> ExportedVersion:
    """Check `source` and publish it as the next version under `out_base`, as `tpuserve export` does. Blocks.

    `source` is a path of any kind that the command takes, or a model in this process. Such a model is a Keras model, a
    JAX function with its parameters `(apply_fn, params)`, a Flax NNX or torch module, or a ServedFunction. `check`,
    `warmup` and `labelled` are files or arrays by name. `examples` are pairs of an input and its expected answer, as
    for --example: `("photo.jpg", "tabby")`, `({"ids": array}, 3)`, `(photo_bytes, scores)`. `options` are the command's
    options, with underscores: `batch_sizes=(1, 8)`, `input="x:float32[batch,4]"`, `from_="keras"`. Options that the
    command lets you repeat take a list or, for NAME=VALUE, a dictionary: `expect=["accuracy>=0.97"]`.

    Raises:
        ExportError: if the export fails; it publishes nothing. Each subclass has an exit code of the command.
        TypeError: if an option is unknown.
    """
    started = time.monotonic()
    path = os.fspath(source) if isinstance(source, str | os.PathLike) else None
    reports = [report] if isinstance(report, str | os.PathLike) else list(report)
    with tempfile.TemporaryDirectory() as scratch:
        file_options: dict[str, object] = {
            "check": _as_file(check, scratch, "check"),
            "warmup": _as_file(warmup, scratch, "warmup"),
            "labelled": _as_file(labelled, scratch, "labelled"),
            "example": list(_example_texts(examples, scratch)),
        }
        parsed = _parse(path or type(source).__name__, os.fspath(out_base), file_options | options)
        live = source if path is None else None
        return _run(parsed, live, [Path(one) for one in reports], progress, started)


def _parse(source: str, out_base: str, keywords: Mapping[str, object]) -> "ExportOptions":
    from tpuserve_exporter.command.exporting import command
    from tpuserve_exporter.command.options import parse_keywords

    return parse_keywords(command, [source, out_base], keywords)


def _run(
    options: "ExportOptions", live: object | None, reports: list[Path], progress: bool, started: float
) -> ExportedVersion:
    from tpuserve_exporter.reports.reporter import write_report
    from tpuserve_exporter.reports.shown_progress import RecordedProgress, choose_progress

    recorded = RecordedProgress(choose_progress(silent=not progress))
    try:
        exported = _export(options, live, recorded, started)
    except ExportError as error:
        from tpuserve_exporter.reports.summary import failure_document

        for path in reports:
            write_report(path, failure_document(options.out_base.name, error, recorded.steps))
        raise
    from tpuserve_exporter.reports.summary import success_document

    document = success_document(exported, time.monotonic() - started, recorded.steps)
    for path in reports:
        write_report(path, document)
    return ExportedVersion(
        name=exported.name, version=exported.version, path=document["path"], published=document["published"],
        warnings=exported.warnings, report=document,
    )  # fmt: skip


def _export(
    options: "ExportOptions", live: object | None, progress: "RecordedProgress", started_s: float
) -> "Exported":
    """Run the export. Leave TensorFlow and its devices unchanged in a process that uses it already."""
    from tpuserve_exporter.models.frameworks import quiet_tensorflow, start_tensorflow

    if "tensorflow" not in sys.modules:
        with progress.step("Start TensorFlow"):
            start_tensorflow()
    _check_keras()
    from tpuserve_exporter.reports.summary import VersionReport
    from tpuserve_exporter.stages.run import run_export

    with quiet_tensorflow():
        return run_export(options, progress, VersionReport(progress, started_s).write, live)


def _check_keras() -> None:
    """Raise OptionConflict unless Keras runs on TensorFlow. Only that backend writes SavedModels."""
    import keras

    if (backend := keras.backend.backend()) != "tensorflow":
        raise OptionConflict(
            f"Keras runs on {backend} in this process and cannot write a SavedModel here. Save the model with "
            "model.save('model.keras'), and export the file in a separate process: tpuserve export model.keras "
            "OUT_BASE"
        )


def _example_texts(examples: Examples, folder: str) -> Iterator[str]:
    """Yield `INPUT=EXPECTED` for each example. Write bytes and arrays to files."""
    pairs = examples.items() if isinstance(examples, Mapping) else examples
    for number, (example_input, expected) in enumerate(pairs, start=1):
        source = _as_content(example_input, os.path.join(folder, f"example {number}"))
        answer = os.path.join(folder, f"expected {number}")
        yield f"{source}={expected if isinstance(expected, str | Integral) else _as_content(expected, answer)}"


def _as_content(value: object, path: str) -> str:
    """Return a text or a path unchanged. Write bytes and arrays to a file."""
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if isinstance(value, bytes):
        Path(path).write_bytes(value)
        return path
    if isinstance(value, Mapping):
        return _save_arrays(value, f"{path}.npz")
    import numpy as np

    np.save(f"{path}.npy", np.asarray(value), allow_pickle=False)
    return f"{path}.npy"


def _as_file(samples: Samples | None, folder: str, name: str) -> str | None:
    """Return the path of `samples`. Write arrays to a file first, because the command's options take files."""
    if samples is None or isinstance(samples, str | os.PathLike):
        return None if samples is None else os.fspath(samples)
    return _save_arrays(samples, os.path.join(folder, f"{name}.npz"))


def _save_arrays(arrays: Mapping[str, Any], path: str) -> str:
    """Save arrays as `path`, and return it. The exporter reads no pickles, so object arrays become byte strings."""
    import numpy as np

    converted = {key: np.asarray(value) for key, value in arrays.items()}
    plain = {key: value.astype(np.bytes_) if value.dtype == object else value for key, value in converted.items()}
    np.savez(path, allow_pickle=False, **plain)
    return path
