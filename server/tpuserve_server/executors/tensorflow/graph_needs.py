"""What TensorFlow needs to load a SavedModel: a graph with the server's tags, and the libraries of its operations."""

from collections.abc import Collection, Sequence
from typing import Final

from tpuserve_formats.messages.official import MetaGraphDef
from tpuserve_formats.operation_libraries import OperationLibrary, libraries_with
from tpuserve_formats.safety.graph import Body, Graph
from tpuserve_server.core.terms.errors import NotFound
from tpuserve_server.core.terms.storage import show_name
from tpuserve_server.executors.plugin import MissingRuntime

_MOST_SHOWN: Final = 5


def choose_graph(graphs: Sequence[Graph], tags: Collection[str]) -> Graph:
    """Return the graph with exactly these tags. Raises NotFound with TensorFlow's message and the tags there are.

    The result is empty for a SavedModel without any graph, which TensorFlow's loader refuses.
    """
    if not graphs:
        return Graph(Body(), {}, MetaGraphDef())
    for graph in graphs:
        if set(graph.rest.meta_info_def.tags) == set(tags):
            return graph
    there = [f"{{ {show_name(', '.join(one.rest.meta_info_def.tags))} }}" for one in graphs[:_MOST_SHOWN]]
    options = [show_name(",".join(one.rest.meta_info_def.tags)) for one in graphs[:_MOST_SHOWN]]
    raise NotFound(
        f"Could not find meta graph def matching supplied tags: {{ {', '.join(tags)} }}. Its graphs have the tags "
        f"{' and '.join(there)}. Export the SavedModel with tpuserve export --tag-set, or load another graph with "
        f"--saved_model_tags={' or '.join(options)}"
    )


def find_libraries(operations: Collection[str]) -> list[OperationLibrary]:
    """Return the libraries that have some of the operations. Raises MissingRuntime if one is not installed."""
    needed = libraries_with(operations)
    for library in needed:
        require(library, operations)
    return needed


def require(library: OperationLibrary, operations: Collection[str]) -> None:
    """Raise MissingRuntime if the library is not installed. The message names its part of `operations`."""
    if not library.is_installed:
        raise MissingRuntime(
            f"the version's SavedModel needs {library.named(operations)}, which is not installed: pip install "
            f"'tpuserve-server[{library.extra}]'"
        )
