"""PreparedRequest: the checks of a request, made once for all requests whose inputs look the same."""

import weakref

from tpuserve_server.core.batching.batcher import Batcher


class PreparedRequest:
    """The checked facts about requests for one signature of one loaded version.

    They hold for all inputs with the same names, dtypes and shapes. It does not keep the version in memory.
    """

    __slots__ = ("_batcher", "is_shared", "output_filter", "output_names", "rows", "signature_name")

    def __init__(
        self,
        batcher: Batcher,
        signature_name: str,
        output_filter: tuple[str, ...],
        output_names: tuple[str, ...],
        rows: int,
        *,
        is_shared: bool,
    ) -> None:
        """Create the facts about the version that owns `batcher`. With `is_shared`, the rows may share batches.

        The requests name the outputs of `output_filter`, and get those of `output_names`.
        """
        self._batcher = weakref.ref(batcher)
        self.signature_name = signature_name
        self.output_filter = output_filter
        self.output_names = output_names
        self.rows = rows
        self.is_shared = is_shared

    def is_for(self, batcher: Batcher) -> bool:
        """Return whether the facts are about the version that owns `batcher`."""
        return self._batcher() is batcher
