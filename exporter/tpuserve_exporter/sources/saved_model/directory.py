"""Opens an existing SavedModel, which the exporter copies file by file with its signatures."""

import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuserve_exporter.errors import OptionConflict, SourceUnreadable, reason_of
from tpuserve_exporter.models.ragged import dense_function, list_sparse, read_row_splits, settle_row_splits
from tpuserve_exporter.models.served_function import RaggedNames, ServedFunction, TracedReference
from tpuserve_exporter.models.tree_path import name_of_variable
from tpuserve_exporter.options.export_options import ModelOptions
from tpuserve_exporter.sources.checkpoint_path import find_variables
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.sources.saved_model.file import check_source, check_whole, parse_saved_model, read_content
from tpuserve_exporter.sources.variables.object_graph import (
    OBJECT_GRAPH_KEY,
    open_checkpoint,
    read_object_graph,
    read_tensor,
)
from tpuserve_exporter.terms.provenance import Origin, OriginKind, Origins
from tpuserve_exporter.terms.signature import Array

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

# Every export writes these files again. An old copy would describe another set of files.
_OURS = "tpuserve"
# Suffix that TensorFlow 2 adds to a variable's path.
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
# Prefix under which Keras stores all variables a second time, in addition to those of the layers.
_AGAIN = "_all_variables/"


def open_source(source: Path, options: ModelOptions) -> OpenedSource:
    """Open a SavedModel.

    Raises:
        OptionConflict: if an option would change a model that is only copied.
        SourceUnreadable: if the SavedModel is damaged or TensorFlow does not know an operation.
        UnsafeOperation: if it has operations that servers refuse.
    """
    if options.builder is not None or options.inputs or options.outputs:
        raise OptionConflict("a SavedModel has its own graph and names. Omit --model, --input and --output")
    if options.compute_dtype != "keep":
        raise OptionConflict("a SavedModel keeps its dtypes. Omit --compute-dtype")
    if options.weights == "ema" or options.renames:
        raise OptionConflict("a SavedModel keeps its weights and names. Omit --weights and --rename")
    content = read_content(source)
    saved_model = parse_saved_model(source, content)
    check_whole(source, saved_model)
    check_source(source.name, content, options.allowed_ops)
    if options.freeze or options.as_function:
        return _open_to_change(source, saved_model, content, options)
    notes = tuple(note for one in saved_model.meta_graphs for note in list_sparse(one))
    return OpenedSource(kind="savedmodel", name=source.name, model=source, notes=notes, values=_list_values(source))


def _open_to_change(source: Path, saved_model: "SavedModel", content: bytes, options: ModelOptions) -> OpenedSource:
    """Open the signature that --signature-name selects, as a function. Raises SourceUnreadable or OptionConflict.

    `content` is the checked graph. TensorFlow loads it, whatever the file is now.
    """
    import tensorflow as tf

    folder = _with_graph(source, content)
    try:
        loaded = tf.saved_model.load(str(folder))
    except Exception as error:  # TensorFlow raises many types here
        shutil.rmtree(folder, ignore_errors=True)
        reason = reason_of(error).replace(str(folder), source.name)
        raise SourceUnreadable(
            f"{source.name} does not load in Python ({reason}), which --freeze, --signature and --batching need. Omit "
            "them"
        ) from error
    # It reads its assets later.
    weakref.finalize(loaded, shutil.rmtree, folder, ignore_errors=True)
    name = _choose(source, loaded.signatures, options)
    signature = loaded.signatures[name]
    _check_predicts(source, saved_model, name)
    inputs = {
        name: tf.TensorSpec(spec.shape, spec.dtype, name=name)
        for name, spec in signature.structured_input_signature[1].items()
    }
    served = (one for one in saved_model.meta_graphs if list(one.meta_info_def.tags) == ["serve"])
    row_splits = read_row_splits(next(served, saved_model.meta_graphs[0])).get(name, RaggedNames())
    function = dense_function(ServedFunction(inputs, signature, [loaded], row_splits))
    others = sorted(loaded.signatures.keys() - {name})
    notes = (f"only the signature {name} is exported, without {', '.join(others)}",) if others else ()
    return OpenedSource(
        kind="savedmodel",
        name=source.name,
        model=function,
        reference=TracedReference(function),
        notes=notes,
        values=_list_values(source),
    )


def _choose(source: Path, signatures: "Mapping[str, Any]", options: ModelOptions) -> str:
    """Return the name of the signature to take: the only one if it becomes a function, else --signature-name's.

    Raises OptionConflict if no signature has that name.
    """
    if options.as_function and len(signatures) == 1:
        return str(next(iter(signatures)))
    name = options.signature_name
    if name not in signatures:
        how = (
            "--signature applies only to that one"
            if options.as_function
            else ("Choose the one to freeze with --signature-name")
        )
        raise OptionConflict(
            f"{source.name} has no signature {name!r}, only {', '.join(sorted(signatures)) or 'none at all'}. {how}"
        )
    return name


def _with_graph(source: Path, content: bytes) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="tpuserve-export-"))
    (folder / "saved_model.pb").write_bytes(content)
    for name in ("variables", "assets"):
        (folder / name).symlink_to((source / name).absolute())
    return folder


def _check_predicts(source: Path, saved_model: "SavedModel", name: str) -> None:
    method = saved_model.meta_graphs[0].signature_def[name].method_name
    if method.endswith(("classify", "regress")):
        raise OptionConflict(
            f"the signature {name!r} of {source.name} is for {method.rpartition('/')[2]}, but --freeze, --signature "
            "and --batching need one of tensors. Choose it with --signature-name"
        )


def copy_saved_model(source: Path, path: Path) -> None:
    """Copy a SavedModel.

    Raises:
        OptionConflict: if the copy would be inside the source.
        SourceUnreadable: if a file cannot be copied.
    """
    if path.resolve().is_relative_to(source.resolve()):
        raise OptionConflict(f"OUT_BASE is inside SOURCE ({source}). Choose a directory outside of it")
    try:
        shutil.copytree(source, path, ignore=_leave_out)
    except shutil.Error as error:
        # Each file has a tuple (from, to, why). The message omits paths, which would show the scratch directory.
        raise SourceUnreadable(f"cannot copy {source.name}: {error.args[0][-1][2]}") from error
    except OSError as error:
        raise SourceUnreadable(f"cannot copy {source.name}: {error.strerror}") from error
    _settle_text(path)
    settle_row_splits(path)


def _settle_text(path: Path) -> None:
    """Replace `saved_model.pbtxt` by `saved_model.pb`, because C++ and Python read some texts in other ways."""
    binary, text = path / "saved_model.pb", path / "saved_model.pbtxt"
    if text.is_file():
        if not binary.is_file():
            binary.write_bytes(read_content(path))
        text.unlink()


def saved_values(saved_model: Path) -> Iterator[tuple[str, Array]]:
    """Yield name and value of every floating-point variable. Raises SourceUnreadable.

    Memory holds one value at a time.
    """
    prefix = find_variables(saved_model)
    if prefix is None:
        return
    reader = open_checkpoint(prefix)
    dtypes = reader.get_variable_to_dtype_map()
    for key, name in _names(prefix, reader).items():
        if dtypes[key].is_floating or dtypes[key].is_complex:
            yield name, read_tensor(reader, prefix, key)


def _list_values(saved_model: Path) -> Origins:
    """Return the origins of variables and of files with tables. Raises SourceUnreadable."""
    prefix = find_variables(saved_model)
    names = [] if prefix is None else list(_names(prefix, open_checkpoint(prefix)).values())
    assets = [one.relative_to(saved_model).as_posix() for one in sorted((saved_model / "assets").rglob("*"))]
    return dict.fromkeys([*names, *assets], Origin(OriginKind.COPIED))


def _names(prefix: Path, reader: "tf.train.CheckpointReader") -> dict[str, str]:
    """Return the training names of the stored values, by key. TensorFlow 2 stores them in the object graph.

    Omit the second copies that Keras stores, and TensorFlow's own data.
    """
    names = {key: key.removesuffix(_VALUE) for key in reader.get_variable_to_dtype_map()}
    if names.pop(OBJECT_GRAPH_KEY, None) is not None:
        names |= {one.key: name_of_variable(one.name) for one in read_object_graph(prefix).variables.values()}
    times = Counter(names.values())
    return {key: name for key, name in names.items() if not (key.startswith(_AGAIN) and times[name] > 1)}


def _leave_out(where: str, names: list[str]) -> list[str]:
    return [_OURS] if Path(where).name == "assets.extra" else []
