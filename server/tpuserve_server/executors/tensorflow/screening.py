"""Refusal of SavedModels with operations that read or write files, run Python, or are unknown.

`tpuserve_formats.safety` finds them. `--allowed_ops` allows single operations.
"""

from collections.abc import Collection, Sequence

from tpuserve_formats.safety.graph import Graph
from tpuserve_formats.safety.screening import BadAsset, describe_findings, operations_of, screen_graphs
from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument


def check_operations(graphs: Sequence[Graph], tags: Collection[str], allowed: Collection[str]) -> tuple[str, ...]:
    """Return the operations that the SavedModel needs and only `allowed` permits. Blocks.

    Raises:
        FailedPrecondition: the graph that will be loaded has other such operations. The message names them.
        InvalidArgument: an asset is outside the version.
    """
    try:
        findings = screen_graphs(graphs, tags)
    except BadAsset as error:
        raise InvalidArgument(str(error)) from error
    if refused := [finding for finding in findings if finding.operation not in allowed]:
        names = ",".join(operations_of(refused))
        raise FailedPrecondition(
            f"this server refuses operations of the SavedModel: {describe_findings(refused)}. Export the model without "
            f"them. If you trust its author, allow them: --allowed_ops={names}"
        )
    return tuple(operations_of(findings))
