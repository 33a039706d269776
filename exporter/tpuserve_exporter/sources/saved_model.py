"""An existing SavedModel, taken over file by file: its signatures are its own."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from tpuserve_exporter.errors import OptionConflict, SourceUnreadable
from tpuserve_exporter.options.export_options import ModelOptions
from tpuserve_exporter.signature import Array
from tpuserve_exporter.sources.checkpoint_path import find_variables
from tpuserve_exporter.sources.object_graph import open_checkpoint, read_tensor
from tpuserve_exporter.sources.opened import OpenedSource

# Written anew at every export: what another export left there speaks of another set of files.
_OURS = "tpuserve"
# What TensorFlow 2 adds to a variable's path.
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


def open_source(source: Path, options: ModelOptions) -> OpenedSource:
    """Raises OptionConflict for options that would change a model which is only copied."""
    if options.builder is not None or options.inputs or options.outputs:
        raise OptionConflict("a SavedModel brings its own graph and names: --model, --input and --output do not apply")
    if options.compute_dtype != "keep":
        raise OptionConflict("a SavedModel is taken over as it is: --compute-dtype does not apply")
    if options.weights == "ema" or options.renames:
        raise OptionConflict("a SavedModel is taken over as it is: --weights and --rename do not apply")
    return OpenedSource(kind="savedmodel", name=source.name, model=source)


def copy_saved_model(source: Path, path: Path) -> None:
    """Raises OptionConflict where the copy would lie in what is copied, SourceUnreadable for files that cannot be."""
    if path.resolve().is_relative_to(source.resolve()):
        raise OptionConflict(f"OUT_BASE lies within SOURCE ({source}): choose a directory beside it")
    try:
        shutil.copytree(source, path, ignore=_leave_out)
    except shutil.Error as error:
        # (from, to, why) of each file: the last "why" says enough, the names would show where we work.
        raise SourceUnreadable(f"cannot copy {source.name}: {error.args[0][-1][2]}") from error
    except OSError as error:
        raise SourceUnreadable(f"cannot copy {source.name}: {error.strerror}") from error


def saved_values(saved_model: Path) -> Iterator[tuple[str, Array]]:
    """Name and value of every floating-point variable, one value in memory at a time. Raises SourceUnreadable."""
    prefix = find_variables(saved_model)
    if prefix is None:
        return
    reader = open_checkpoint(prefix)
    for key, dtype in reader.get_variable_to_dtype_map().items():
        if dtype.is_floating or dtype.is_complex:
            yield key.removesuffix(_VALUE), read_tensor(reader, prefix, key)


def _leave_out(where: str, names: list[str]) -> list[str]:
    return [_OURS] if Path(where).name == "assets.extra" else []
