"""A prediction that is sent in parts of rows: its steps, and the order in which the two clients execute them."""

import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass
from typing import Final

from tpuserve_client.attempts import Call
from tpuserve_client.casting import named_arrays
from tpuserve_client.dtypes import Array
from tpuserve_client.errors import FailedPrecondition
from tpuserve_client.exchange import Priority
from tpuserve_client.model import Metadata, ModelSpec, Prediction
from tpuserve_client.operations import Operations
from tpuserve_client.row_parts import (
    check_max_batch_size,
    check_outputs_have_rows,
    check_rows,
    count_rows,
    split_rows,
)
from tpuserve_client.steps import Steps

# Enough to keep a server busy while other parts are encoded and decoded.
CONCURRENT_PARTS: Final = 4


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of the inputs, and the version that every part is sent to."""

    spec: ModelSpec
    inputs: dict[str, Array]
    rows: int


class SplitPredict:
    """The steps of one call. Its parts share the call's deadline. Safe to share between threads."""

    def __init__(
        self,
        operations: Operations,
        call: Call,
        spec: ModelSpec,
        signature_name: str | None,
        output_filter: tuple[str, ...],
        priority: Priority | None,
        max_batch_size: int,
    ) -> None:
        """Create the call. Raises InvalidArgument for a `max_batch_size` that is not a positive integer."""
        self._operations = operations
        self._call = call
        self._spec = spec
        self._signature_name = signature_name
        self._output_filter = output_filter
        self._priority = priority
        self._max_batch_size = check_max_batch_size(max_batch_size)

    def parts(self, inputs: object) -> Steps[list[Part]]:
        """Divide the inputs. All parts name one version, which a new metadata request finds.

        Raises InvalidArgument for inputs or outputs without rows, and FailedPrecondition for an unknown version.
        """
        metadata = yield from self._operations.metadata(self._call.for_part(), self._spec)
        signature = metadata.signature(self._signature_name)
        arrays = named_arrays(inputs, self._spec, signature)
        check_outputs_have_rows(self._spec, signature, self._output_filter)
        parts = split_rows(arrays, count_rows(self._spec, arrays), self._max_batch_size)
        spec = self._spec if len(parts) == 1 else _pinned(self._spec, metadata)
        return [Part(spec, part, len(next(iter(part.values())))) for part in parts]

    def predict(self, part: Part) -> Steps[Prediction]:
        """Send a part. Raises InvalidArgument for outputs that have no row for each of its rows."""
        prediction = yield from self._operations.predict(
            self._call.for_part(), part.spec, part.inputs, self._signature_name, self._output_filter, self._priority
        )
        check_rows(prediction, part.rows)
        return prediction


def _pinned(spec: ModelSpec, metadata: Metadata) -> ModelSpec:
    if spec.version is not None:
        return spec
    if metadata.version is None:
        raise FailedPrecondition(
            f"The server does not report the version of model {spec}, so rows could come from different versions. "
            "Set the version."
        )
    return ModelSpec(spec.name, metadata.version)


def first_then_in_threads(predict: Callable[[Part], Prediction], parts: Sequence[Part]) -> list[Prediction]:
    """Predict the first part, then the others in a few threads. Return the predictions in order.

    The first part finds an error before the others take the server's time. After an error, no further part is sent, and
    the error is raised when those in flight have ended.
    """
    first, *rest = parts
    predictions = [predict(first)]
    if not rest:
        return predictions
    failed = threading.Event()

    def predict_unless_failed(part: Part) -> Prediction:
        if failed.is_set():
            raise CancelledError
        try:
            return predict(part)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(min(CONCURRENT_PARTS, len(rest)), thread_name_prefix="tpuserve-part") as pool:
        # The caller's context may hold its trace.
        futures = [pool.submit(copy_context().run, predict_unless_failed, part) for part in rest]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            # Parts begin in order, so a part that the event stopped follows the part that failed.
            errors = [future for future in futures if future in done and future.exception() is not None]
            return predictions + [future.result() for future in errors or futures]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


async def first_then_in_tasks(
    predict: Callable[[Part], Awaitable[Prediction]], parts: Sequence[Part]
) -> list[Prediction]:
    """Predict the first part, then the others in a few tasks. See `first_then_in_threads`.

    After an error, and when the caller is cancelled, the requests in flight are cancelled.
    """
    import asyncio  # only here: it takes long, and the blocking client does not need it

    first, *rest = parts
    first_prediction = await predict(first)
    room = asyncio.Semaphore(CONCURRENT_PARTS)

    async def predict_in_turn(part: Part) -> Prediction:
        await room.acquire()
        prediction = await predict(part)
        room.release()  # only after a success: an error must not let another part begin
        return prediction

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(predict_in_turn(part)) for part in rest]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [first_prediction, *(task.result() for task in tasks)]
