"""Reads a SavedModel, with or without this exporter's manifest."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuserve_exporter.errors import SourceUnreadable, reason_of
from tpuserve_exporter.graphs.operation_libraries import describe_libraries
from tpuserve_exporter.inspection.checkpoint import list_arrays, of_model
from tpuserve_exporter.inspection.contents import Contents
from tpuserve_exporter.inspection.operations import count_operations
from tpuserve_exporter.models.ragged import mark_ragged
from tpuserve_exporter.sources.checkpoint_path import find_variables
from tpuserve_exporter.sources.saved_model.file import (
    find_unassigned_in,
    find_unsafe,
    operations_of,
    read_content,
    read_saved_model,
)
from tpuserve_exporter.sources.saved_model.graphs import describe_tags, served_graph
from tpuserve_exporter.terms.signature import Signature, read_signatures
from tpuserve_exporter.version.manifest import hash_file
from tpuserve_exporter.version.signing import signers_of
from tpuserve_exporter.version.warmup_records import WARMUP_FILE
from tpuserve_formats.manifest import MANIFEST_FILE
from tpuserve_formats.safety.unassigned import explain_unassigned

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel


_OPERATION = "XlaCallModule"


def describe_modules(graph: "GraphDef") -> str | None:
    """Return a text such as `3 for CPU, TPU (version 9)`, or None if the graph has no modules."""
    functions = (function.node_def for function in graph.library.function)
    nodes = [node for nodes in (graph.node, *functions) for node in nodes if node.op == _OPERATION]
    if not nodes:
        return None
    platforms = _join({one.decode() for node in nodes for one in node.attr["platforms"].list.s})
    versions = _join({str(node.attr["version"].i) for node in nodes})
    return f"{len(nodes)} for {platforms or 'any platform'} (version {versions})"


def _join(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


_PREDICT = "tensorflow/serving/predict"


def inspect_saved_model(path: Path, verify: bool) -> Contents:
    """Return the contents of a SavedModel. `verify` reads every file for its hash. Raises SourceUnreadable."""
    saved_model = _parse(path)
    meta_graph = _choose(saved_model)
    signatures = mark_ragged(read_signatures(meta_graph.signature_def), meta_graph)
    manifest, problems = _read_manifest(path)
    prefix = find_variables(path)
    arrays, damage = ((), ()) if prefix is None else list_arrays(prefix)
    files = {one.relative_to(path).as_posix(): one.stat().st_size for one in sorted(path.rglob("*")) if one.is_file()}
    signers, bad_signatures = signers_of(path)
    problems += [*bad_signatures, *damage, *_compare_files(path, manifest or {}, files, verify)]
    problems += _find_failures(path, saved_model)
    outputs = [spec.graph_name for one in signatures.values() for spec in one.outputs.values() if spec.graph_name]
    return Contents(
        kind="SavedModel" if manifest is None else "exported version",
        name=path.resolve().name,
        facts=dict(_facts(path, saved_model, meta_graph, signatures))
        | ({"signed by": ", ".join(signers)} if signers else {}),
        signatures=signatures,
        arrays=of_model(arrays),
        operations=count_operations(meta_graph.graph_def, outputs),
        files=files,
        manifest=manifest,
        notes=tuple(describe_libraries(operations_of(path))),
        refused=tuple(map(str, find_unsafe(path))),
        problems=tuple(problems),
    )


def read_meta_graph(path: Path) -> "MetaGraphDef":
    """Return the graph that servers load. Raises SourceUnreadable."""
    return _choose(_parse(path))


def _parse(path: Path) -> "SavedModel":
    saved_model = read_saved_model(path)
    if not saved_model.meta_graphs:
        raise SourceUnreadable("saved_model.pb contains no graph: it is empty or truncated")
    return saved_model


def _choose(saved_model: "SavedModel") -> "MetaGraphDef":
    """Return the graph that servers load, else the first one that is tagged `serve`, else the first."""
    graphs = list(saved_model.meta_graphs)
    return served_graph(saved_model) or next((one for one in graphs if "serve" in one.meta_info_def.tags), graphs[0])


def _find_failures(path: Path, saved_model: "SavedModel") -> Iterator[str]:
    """Yield why servers cannot load the SavedModel or cannot answer with it."""
    if served_graph(saved_model) is None:
        yield (
            "no graph has exactly the tag serve, so servers do not find one. Export the SavedModel with tpuserve "
            f"export. Its graphs have the tags {describe_tags(saved_model)}"
        )
    restores = find_variables(path) is not None
    if found := find_unassigned_in(read_content(path), restores=restores):
        reason = explain_unassigned(found)
        yield f"{reason}. Every such request fails. tpuserve export repairs it if Python finds the values"


def _facts(
    path: Path, saved_model: "SavedModel", meta_graph: "MetaGraphDef", signatures: Mapping[str, Signature]
) -> Iterator[tuple[str, str]]:
    info = meta_graph.meta_info_def
    yield "written by", f"TensorFlow {info.tensorflow_version}"
    yield "tags", ",".join(info.tags)
    for other in (one for one in saved_model.meta_graphs if one is not meta_graph):
        yield f"graph {','.join(other.meta_info_def.tags)}", _describe_signatures(other)
    for name in signatures:
        method = meta_graph.signature_def[name].method_name
        if method not in ("", _PREDICT):
            yield f"method of {name}", method
    if info.function_aliases:
        yield "aliases", ", ".join(sorted(set(info.function_aliases.values())))
    if modules := describe_modules(meta_graph.graph_def):
        yield "StableHLO modules", modules
    if meta_graph.asset_file_def:
        yield "assets", ", ".join(asset.filename for asset in meta_graph.asset_file_def)
    if (path / WARMUP_FILE).is_file():
        yield "warm-up requests", str(WARMUP_FILE)


def _describe_signatures(meta_graph: "MetaGraphDef") -> str:
    signatures = mark_ragged(read_signatures(meta_graph.signature_def), meta_graph)
    return "; ".join(map(str, signatures.values())) or "no signatures"


def _read_manifest(path: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the manifest unchecked, because another version of this exporter may have written it, and problems."""
    file = path / MANIFEST_FILE
    if not file.is_file():
        return None, []
    try:
        manifest = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        return None, [f"cannot read {MANIFEST_FILE}: {reason_of(error)}"]
    if not isinstance(manifest, dict):
        return None, [f"{MANIFEST_FILE} is not a manifest"]
    return manifest, []


def _compare_files(path: Path, manifest: Mapping[str, Any], files: Mapping[str, int], verify: bool) -> Iterator[str]:
    for name, entry in (manifest.get("files") or {}).items():
        if name not in files:
            yield f"{name} is missing; the manifest lists it"
        elif files[name] != entry["size_bytes"]:
            yield f"{name} has {files[name]:,} bytes; the manifest states {entry['size_bytes']:,}"
        elif verify and hash_file(path / name) != entry["sha256"]:
            yield f"{name} has changed since it was published: its sha256 differs from the manifest's"
