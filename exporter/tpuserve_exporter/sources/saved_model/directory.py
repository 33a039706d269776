"""Opens an existing SavedModel, which the exporter copies file by file with its signatures."""

import shutil
import stat
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
from tpuserve_exporter.sources.saved_model.file import (
    BINARY,
    SAVE_ALL,
    TEXT,
    Unassigned,
    check_source,
    check_whole,
    find_unassigned_in,
    parse_saved_model,
    read_content,
)
from tpuserve_exporter.sources.saved_model.graphs import make_servable
from tpuserve_exporter.sources.saved_model.loaded import PythonModel, SourceSession
from tpuserve_exporter.sources.variables.object_graph import (
    OBJECT_GRAPH_KEY,
    open_checkpoint,
    read_object_graph,
    read_tensor,
)
from tpuserve_exporter.terms.provenance import Origin, OriginKind, Origins
from tpuserve_exporter.terms.signature import Array
from tpuserve_formats.safety.unassigned import explain_unassigned

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

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
    content, notes = _read_graph(source, options)
    if options.freeze or options.as_function:
        return _open_to_change(source, content, notes, options)
    folder = _with_graph(source, content)
    unassigned = find_unassigned_in(content, restores=find_variables(source) is not None)
    if unassigned:
        return _write_again(source, folder, content, unassigned, notes)
    reference = SourceSession(folder)
    weakref.finalize(reference, shutil.rmtree, folder, ignore_errors=True)
    return OpenedSource(
        kind="savedmodel",
        name=source.name,
        model=folder,
        reference=reference,
        notes=(*notes, *list_sparse(parse_saved_model(source, content).meta_graphs[0])),
        values=_list_values(folder),
    )


def _read_graph(source: Path, options: ModelOptions) -> tuple[bytes, list[str]]:
    """Return the serialized SavedModel with the graph that servers load, checked, and notes about what changed."""
    content = read_content(source)
    saved_model = parse_saved_model(source, content)
    servable, notes = make_servable(source.name, saved_model, options.tag_set)
    if servable is not saved_model:
        content = servable.SerializeToString()
    check_whole(source, servable)
    check_source(source.name, content, options.allowed_ops)
    return content, notes


def _write_again(source: Path, folder: Path, content: bytes, unassigned: Unassigned, notes: list[str]) -> OpenedSource:
    """Open a SavedModel that only Python gives all of its values, as Python saves it again.

    Python restores variables by the objects of the model, and initialises tables. Raises SourceUnreadable if a value is
    missing nevertheless.
    """
    import tensorflow as tf

    problem = f"the SavedModel {source.name} cannot answer: {explain_unassigned(unassigned)}"
    has_objects = any(one.object_graph_def.nodes for one in parse_saved_model(source, content).meta_graphs)
    if not has_objects and any(one.kind != "table" for states in unassigned.values() for one in states):
        # Without the objects, Python leaves the variables empty.
        shutil.rmtree(folder, ignore_errors=True)
        raise SourceUnreadable(f"{problem}. {SAVE_ALL}")
    again = Path(tempfile.mkdtemp(prefix="tpuserve-export-"))
    try:
        python = PythonModel(folder)
        tf.saved_model.save(python.loaded, str(again), signatures=dict(python.loaded.signatures))
    except Exception as error:  # TensorFlow raises many types here
        shutil.rmtree(again, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
        reason = reason_of(error).replace(str(folder), source.name)
        raise SourceUnreadable(f"{problem}, and Python does not restore it ({reason}). {SAVE_ALL}") from error
    for one in (folder, again):
        weakref.finalize(python, shutil.rmtree, one, ignore_errors=True)
    if find_unassigned_in(read_content(again)):
        raise SourceUnreadable(f"{problem}. {SAVE_ALL}")
    repaired = f"{problem}. Python finds all values, so the export saved it again from Python"
    return OpenedSource(
        kind="savedmodel",
        name=source.name,
        model=again,
        reference=python,
        notes=(*notes, repaired),
        values=_list_values(again),
    )


def _open_to_change(source: Path, content: bytes, notes: list[str], options: ModelOptions) -> OpenedSource:
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
    (graph,) = parse_saved_model(source, content).meta_graphs
    _check_predicts(source, graph, name)
    inputs = {
        name: tf.TensorSpec(spec.shape, spec.dtype, name=name)
        for name, spec in signature.structured_input_signature[1].items()
    }
    row_splits = read_row_splits(graph).get(name, RaggedNames())
    function = dense_function(ServedFunction(inputs, signature, [loaded], row_splits))
    others = sorted(loaded.signatures.keys() - {name})
    if others:
        notes = [*notes, f"only the signature {name} is exported, without {', '.join(others)}"]
    return OpenedSource(
        kind="savedmodel",
        name=source.name,
        model=function,
        reference=TracedReference(function),
        notes=tuple(notes),
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
    """Return a temporary directory with links to the files of `source`, and `content` as its graph."""
    folder = Path(tempfile.mkdtemp(prefix="tpuserve-export-"))
    (folder / BINARY).write_bytes(content)
    shutil.copytree(source, folder, ignore=_leave_out, copy_function=_link, dirs_exist_ok=True)
    folder.chmod(folder.stat().st_mode | stat.S_IRWXU)
    if not (source / BINARY).is_file() or (source / BINARY).read_bytes() != content:
        from tensorflow.python.saved_model import fingerprinting_utils

        fingerprinting_utils.write_fingerprint(str(folder))
    return folder


def _link(file: str, link: str) -> None:
    Path(link).symlink_to(Path(file).absolute())


def _leave_out(where: str, names: list[str]) -> list[str]:
    return [_OURS] if Path(where).name == "assets.extra" else [BINARY, TEXT]


def _check_predicts(source: Path, graph: "MetaGraphDef", name: str) -> None:
    method = graph.signature_def[name].method_name
    if method.endswith(("classify", "regress")):
        raise OptionConflict(
            f"the signature {name!r} of {source.name} is for {method.rpartition('/')[2]}, but --freeze, --signature "
            "and --batching need one of tensors. Choose it with --signature-name"
        )


def copy_saved_model(model: Path, path: Path, source: Path) -> None:
    """Copy the SavedModel `model`, as which `source` was opened.

    Raises:
        OptionConflict: if the copy would be inside the source.
        SourceUnreadable: if a file cannot be copied.
    """
    if path.resolve().is_relative_to(source.resolve()):
        raise OptionConflict(f"OUT_BASE is inside SOURCE ({source}). Choose a directory outside of it")
    try:
        shutil.copytree(model, path)
    except shutil.Error as error:
        # Each file has a tuple (from, to, why). The message omits paths, which would show the scratch directory.
        raise SourceUnreadable(f"cannot copy {source.name}: {error.args[0][-1][2]}") from error
    except OSError as error:
        raise SourceUnreadable(f"cannot copy {source.name}: {error.strerror}") from error
    settle_row_splits(path)


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
