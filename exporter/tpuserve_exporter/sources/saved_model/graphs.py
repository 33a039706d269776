"""Chooses one of a SavedModel's graphs by its tags, and makes it the only graph, as servers load it."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from tpuserve_exporter.errors import OptionConflict, SourceUnreadable
from tpuserve_exporter.graphs.graph_walk import check_kernels, drop_unused_functions
from tpuserve_exporter.graphs.tpu_surgery import find_tpu_operations, remove_tpu_operations

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

# The tag of the graph that servers load.
SERVED: Final = ("serve",)
_MOST_NAMED: Final = 3


def served_graph(saved_model: "SavedModel") -> "MetaGraphDef | None":
    """Return the graph with the tags that servers look for, exactly as TensorFlow's loader does, or None."""
    return _find(saved_model, SERVED)


def describe_tags(saved_model: "SavedModel") -> str:
    """Return the tags of all graphs, such as `serve and serve,tpu`."""
    return " and ".join(_text(one.meta_info_def.tags) for one in saved_model.meta_graphs)


def make_servable(name: str, saved_model: "SavedModel", tags: Sequence[str]) -> tuple["SavedModel", list[str]]:
    """Return the SavedModel with one graph, which servers load, and notes about what changed.

    `tags` choose the graph; without any, it is the one for servers. A graph of a TPU program runs on any device
    afterwards, in one replica. A SavedModel that servers load as it is stays the same object.

    Raises:
        OptionConflict: if no graph has the tags, or none is the obvious one. The message lists the tags.
        SourceUnreadable: if there is no graph.
        CannotLower: if operations remain that run only on a TPU.
    """
    chosen = _choose(name, saved_model, tags)
    removed = find_tpu_operations(chosen.graph_def)
    if not removed and len(saved_model.meta_graphs) == 1 and tuple(chosen.meta_info_def.tags) == SERVED:
        return saved_model, []
    changed = type(saved_model)(saved_model_schema_version=saved_model.saved_model_schema_version)
    graph = changed.meta_graphs.add()
    graph.CopyFrom(chosen)
    graph.meta_info_def.tags[:] = SERVED
    if removed:
        graph.graph_def.CopyFrom(remove_tpu_operations(chosen.graph_def))
        _check_kernels(graph.graph_def)
    return changed, list(_describe(name, saved_model, chosen, removed))


def _check_kernels(graph_def: "GraphDef") -> None:
    """Raise CannotLower for operations of a TPU, except in functions that the graph does not call."""
    run = type(graph_def)()
    run.CopyFrom(graph_def)
    drop_unused_functions(run)
    check_kernels(run)


def _choose(name: str, saved_model: "SavedModel", tags: Sequence[str]) -> "MetaGraphDef":
    graphs = saved_model.meta_graphs
    if not graphs:
        raise SourceUnreadable(f"{name} contains no graph: its saved_model.pb is empty or truncated")
    found = _find(saved_model, tags or SERVED)
    if found is not None:
        return found
    if tags:
        raise OptionConflict(
            f"--tag-set: {name} has no graph with exactly the tags {','.join(tags)}. Choose one of its graphs with "
            f"{_options(graphs)}"
        )
    if len(graphs) == 1 and "serve" in graphs[0].meta_info_def.tags:
        return graphs[0]
    raise OptionConflict(
        f"{name} has no graph with exactly the tag 'serve', which servers load. Choose one of its graphs with "
        f"{_options(graphs)}"
    )


def _find(saved_model: "SavedModel", tags: Sequence[str]) -> "MetaGraphDef | None":
    return next((one for one in saved_model.meta_graphs if set(one.meta_info_def.tags) == set(tags)), None)


def _options(graphs: "Iterable[MetaGraphDef]") -> str:
    return " or ".join(f"--tag-set {_text(one.meta_info_def.tags)}" for one in graphs)


def _text(tags: Iterable[str]) -> str:
    return ",".join(tags) or "''"


def _describe(name: str, saved_model: "SavedModel", chosen: "MetaGraphDef", removed: Sequence[str]) -> "Iterable[str]":
    others = [one for one in saved_model.meta_graphs if one is not chosen]
    tags = _text(chosen.meta_info_def.tags)
    if others:
        yield (
            f"{name} has several graphs. The version has only the one with the tags {tags}. To export another, give "
            f"{_options(others)}"
        )
    elif tuple(chosen.meta_info_def.tags) != SERVED:
        yield f"the only graph of {name} has the tags {tags}. In the version, it has the tag serve"
    if removed:
        more = f" and {len(removed) - _MOST_NAMED} more" if len(removed) > _MOST_NAMED else ""
        yield (
            f"operations that run only on a TPU became ordinary ones, for one replica: {', '.join(removed[:3])}{more}. "
            "No TPU has run the source here, so compare some answers with those of your TPU (--example)"
        )
