"""Screening: finds operations of a SavedModel that a server must not run.

Every SavedModel has operations that write and read files: its saver, and the tables that read its assets. Only those
count that TensorFlow may run while it loads and serves the model. The names of the files that they read must come from
TensorFlow's loader, which names the version's own files.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from tpuserve_formats.messages.official import AssetFileDef, MetaGraphDef, SavedObject
from tpuserve_formats.safety.custom_calls import find_calls_in_bytecode
from tpuserve_formats.safety.graph import Body, Graph, Node, read_graph_def, read_graphs
from tpuserve_formats.safety.operations import (
    CACHES,
    DIRECTORIES,
    EVALUATED_ANYWHERE,
    EVALUATED_WITH_FILES,
    FILE_INPUTS,
    danger_of,
)
from tpuserve_formats.safety.reach import Origin, Reach, with_index
from tpuserve_formats.safety.runs import initialisers, signatures, target

# Functions that tf.saved_model.load calls, and the one that ends a resource.
_LOADED: Final = frozenset({"_create_resource", "_destroy_resource", "_initialize"})
_ASSET_COLLECTION: Final = "saved_model_assets"
_MOST_SHOWN: Final = 3
_LONGEST_NAME: Final = 100


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """An operation that a server must not run: its node, the function with the node or "", and what it does."""

    operation: str
    node: str
    function: str
    danger: str

    def __str__(self) -> str:
        function = f", function {_shown(self.function)}" if self.function else ""
        return f"{_shown(self.operation)} (node {_shown(self.node)}{function}) {self.danger}"


def operations_of(findings: Collection[Finding]) -> list[str]:
    """Return the operations of the findings in the order of their names, as a message may show them."""
    return sorted({_shown(one.operation) for one in findings})


def _shown(name: str) -> str:
    """Return a name from a model for a message: short, and without control characters."""
    return "".join(one if one.isprintable() else "?" for one in name[:_LONGEST_NAME])


class BadAsset(ValueError):
    """A SavedModel names an asset outside its directory. The message names the asset."""


def screen_graphs(graphs: Iterable[Graph], tags: Collection[str] | None = None) -> list[Finding]:
    """Return the operations of a SavedModel that a server must not run, in the order of their names.

    `tags` select the graph that will be loaded; None: all graphs. Takes about 5 us for each node; blocks.

    Raises:
        BadAsset: an asset's name leads out of the directory of assets.
    """
    chosen = [graph for graph in graphs if tags is None or set(graph.rest.meta_info_def.tags) == set(tags)]
    return sorted({finding for graph in chosen for finding in _screen(graph)})


def screen_saved_model(saved_model: bytes) -> list[Finding]:
    """Return the operations of a serialized SavedModel that nobody should run: no server, and no Python program.

    In addition to the runs of a server, this covers all graphs, and the functions that tf.saved_model.load runs.

    Raises:
        FormatError: the bytes are not a SavedModel.
        DecodeError: a part of it is damaged.
        BadAsset: as `screen_graphs`.
    """
    graphs = list(read_graphs(saved_model))
    return sorted({*screen_graphs(graphs), *(finding for one in graphs for finding in _judge(_loading(one)))})


def screen_nodes(graph_def: bytes) -> list[Finding]:
    """Return the operations of a serialized GraphDef that should not run, if all of its nodes run. Raises as above."""
    graph = read_graph_def(graph_def)
    reach = Reach(graph, {})
    reach.run([target(name) for name in graph.main.nodes], ())
    return sorted(set(_judge(reach)))


def describe_findings(findings: Collection[Finding]) -> str:
    """Return a text such as `ReadFile (node read) reads files`, with at most three findings, each operation once."""
    first = list({one.operation: one for one in reversed(list(findings))}.values())[::-1]
    more = f", and {len(first) - _MOST_SHOWN} other operations" if len(first) > _MOST_SHOWN else ""
    return f"{', '.join(map(str, first[:_MOST_SHOWN]))}{more}"


def _screen(graph: Graph) -> Iterator[Finding]:
    assets, saver_def = _assets(graph.rest), graph.rest.saver_def
    restoration = Reach(graph, assets | {with_index(saver_def.filename_tensor_name): Origin.VERSION})
    restoration.run([target(saver_def.restore_op_name)], restoration.fed)
    initialisation = Reach(graph, assets)
    initialisation.run(initialisers(graph.rest), assets)
    for reach in (restoration, initialisation, _serving(graph)):
        yield from _judge(reach)
    own = {
        id(node)
        for body, nodes in initialisation.bodies()
        for node in nodes
        if _reads_own_file(initialisation, body, node)
    }
    for body in (graph.main, *graph.functions.values()):
        for node in body.nodes.values():
            if node.op in EVALUATED_ANYWHERE and node.op not in graph.functions and id(node) not in own:
                yield _finding(body, node, danger_of(node.op))
            if node.op in EVALUATED_WITH_FILES and node.op not in graph.functions and node.danger:
                yield _finding(body, node, node.danger)


def _serving(graph: Graph) -> Reach:
    """Return the reach of all signatures. A request may contain anything."""
    served = signatures(graph.rest).values()
    reach = Reach(graph, {tensor: Origin.OTHER for one in served for tensor in one.fed})
    for one in served:
        reach.run(one.fetched, one.fed)
    return reach


def _loading(graph: Graph) -> Reach:
    """Return the reach of tf.saved_model.load: it creates and initialises resources, and restores objects."""
    objects, reach = graph.rest.object_graph_def, Reach(graph, {})
    nodes = objects.nodes
    saveables = [one for node in nodes for one in node.saveable_objects.values()]
    for identity in {one.restore_function for one in saveables} & set(range(len(nodes))):
        for name in _functions_of(nodes[identity]):
            # The first argument is the path of the checkpoint in the version.
            reach.call(name, [Origin.VERSION])
    for child in (child for node in nodes for child in node.children if child.local_name in _LOADED):
        for name in _functions_of(nodes[child.node_id]) if child.node_id < len(nodes) else ():
            bound = objects.concrete_functions[name].bound_inputs
            is_asset = [one < len(nodes) and nodes[one].HasField("asset") for one in bound]
            reach.call(name, [Origin.VERSION if one else Origin.OTHER for one in is_asset])
    return reach


def _functions_of(node: SavedObject) -> list[str]:
    return [*node.function.concrete_functions, *filter(None, [node.bare_concrete_function.concrete_function_name])]


def _judge(reach: Reach) -> Iterator[Finding]:
    for body, nodes in reach.bodies():
        if body.danger:
            yield Finding("FunctionDef", body.name, "", body.danger)
        for node in nodes:
            if node.op not in reach.graph.functions:
                yield from (_finding(body, node, danger) for danger in _dangers(reach, body, node))


def _dangers(reach: Reach, body: Body, node: Node) -> Iterator[str]:
    if (danger := danger_of(node.op)) and not _reads_own_file(reach, body, node):
        yield danger
    if node.danger:
        yield node.danger
    if node.module and (targets := find_calls_in_bytecode(node.module)):
        yield f"calls functions that are not allowed: {', '.join(targets)}"


def _finding(body: Body, node: Node, danger: str) -> Finding:
    return Finding(node.op, node.name, body.name, danger)


def _reads_own_file(reach: Reach, body: Body, node: Node) -> bool:
    """Return whether a node reads only files of the version: their name comes from the loader, or there is none."""
    index = FILE_INPUTS.get(node.op)
    if index is None:
        return False
    # A cache also writes its file. Without a name, it keeps its rows in memory.
    harmless = {Origin.EMPTY} if node.op in CACHES else {Origin.EMPTY, Origin.VERSION}
    return reach.origin(body, node, index) in harmless | ({Origin.ASSETS} if node.op in DIRECTORIES else set())


def _assets(rest: MetaGraphDef) -> dict[str, Origin]:
    """Return the tensors to which the loader feeds the paths of assets. Raises BadAsset."""
    assets = list(rest.asset_file_def)
    if not assets and _ASSET_COLLECTION in rest.collection_def:  # TensorFlow 1
        assets = [AssetFileDef.FromString(one.value) for one in rest.collection_def[_ASSET_COLLECTION].any_list.value]
    for asset in assets:
        # The loader joins the name to the directory of assets, as it is.
        path = PurePosixPath(asset.filename)
        if not asset.filename or path.is_absolute() or ".." in path.parts or "\0" in asset.filename:
            raise BadAsset(f"its asset {asset.filename!r} is outside the directory of assets")
    return {with_index(asset.tensor_info.name): Origin.VERSION for asset in assets}
