"""The error for a request with more rows than its signature's batches accept."""

from tpuserve_server.core.counted import counted
from tpuserve_server.core.errors import InvalidArgument


def too_many_rows(rows: int, most: int, *, splits: bool) -> InvalidArgument:
    """Return the error, with upstream's words first. `splits`: the server already runs large requests in parts."""
    hint = "" if splits else "; enable_large_batch_splitting in the server's batching parameters allows larger requests"
    return InvalidArgument(
        f"Task size {rows} is larger than maximum input batch size {most}. Send at most "
        f"{counted(most, 'row')} in a request{hint}"
    )
