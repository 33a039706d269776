"""An existing SavedModel, taken over file by file: its signatures are its own."""

import shutil
from pathlib import Path

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.options import ModelOptions
from tpuserve_exporter.sources.opened import OpenedSource

# Written anew at every export: what another export left there speaks of another set of files.
_OURS = "tpuserve"


def open_saved_model(source: Path, options: ModelOptions) -> OpenedSource:
    """Raises OptionConflict for options that would change a model which is only copied."""
    if options.builder is not None or options.inputs or options.outputs:
        raise OptionConflict("a SavedModel brings its own graph and names: --model, --input and --output do not apply")
    if options.compute_dtype != "keep":
        raise OptionConflict("a SavedModel is taken over as it is: --compute-dtype does not apply")
    return OpenedSource(kind="savedmodel", name=source.name, write=lambda path: _copy(source, path))


def _copy(source: Path, path: Path) -> None:
    shutil.copytree(source, path, ignore=lambda where, names: [_OURS] if Path(where).name == "assets.extra" else [])
