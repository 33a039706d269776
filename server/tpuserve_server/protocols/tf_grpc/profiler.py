"""tensorflow.ProfilerService, for TensorBoard's capture button and tf.profiler.experimental.client.trace.

It follows tsl/profiler/rpc/profiler_service_impl.cc, except that the server never writes a file to a path that a client
names. The response carries the trace, and the client writes it (docs/explanation/decisions/0011).
"""

import asyncio
import time
from collections.abc import Callable

from tpuserve_formats.messages.official import ProfileOptions
from tpuserve_server.core.terms.errors import Internal, InvalidArgument, Unimplemented
from tpuserve_server.core.terms.tracer import TraceOptions, Tracer
from tpuserve_server.protocols.rpc import CallContext
from tpuserve_server.wire.profiler_proto import (
    encode_profile_response,
    parse_profile_request,
    parse_terminate_request,
)

# The server keeps a trace in memory until it sends it: tens of megabytes per second under load.
_MAX_DURATION_MS = 60_000
# The longest time from a request to the start of its session. A session that waits keeps others from starting.
_MAX_DELAY_S = 60
# tsl/profiler/lib/profiler_lock.h
_BUSY = "Another profiling session active."
_MAX_HOST_LEVEL = 3


class ProfilerMethods:
    """The methods, from bytes to bytes. They raise ServingErrors. One event loop owns them."""

    def __init__(self, tracer: Tracer, unix_ns: Callable[[], int] = time.time_ns) -> None:
        """Record with `tracer`. No session runs yet. `unix_ns` is the time by which clients delay a session."""
        self._tracer = tracer
        self._unix_ns = unix_ns
        self._session: asyncio.Task[bytes] | None = None
        self._session_id = ""
        self._end = asyncio.Event()

    async def profile(self, body: bytes, context: CallContext) -> bytes:
        """Answer Profile: record for the requested duration, or until Terminate or the client's disconnect.

        Only one session runs or waits for its start at a time.

        Raises:
            InvalidArgument: the duration or the delay is too long.
            Internal: another session runs, or recording is impossible.
        """
        request = parse_profile_request(body)
        duration_ms = request.opts.duration_ms
        if duration_ms > _MAX_DURATION_MS:
            raise InvalidArgument(f"duration_ms must be at most {_MAX_DURATION_MS}; was {duration_ms}")
        delay_s = self._delay_s(request.opts)
        if self._session is not None:
            raise Internal(_BUSY)
        self._session_id, self._end = request.session_id, asyncio.Event()
        options = _options(request.opts)
        session = self._run(options, delay_s, duration_ms / 1000, as_message=request.emit_xspace)
        self._session = asyncio.create_task(session)
        try:
            # The shield lets the session stop the tracer in order when the client disconnects.
            return await asyncio.shield(self._session)
        except asyncio.CancelledError:
            self._end.set()
            raise

    async def terminate(self, body: bytes, context: CallContext) -> bytes:
        """Answer Terminate: end the session of that name now. Its recording goes into the response to Profile."""
        if parse_terminate_request(body).session_id == self._session_id:
            self._end.set()
        return b""

    async def monitor(self, body: bytes, context: CallContext) -> bytes:
        """Raise Unimplemented, as upstream does: only Cloud TPU's own service implements Monitor."""
        raise Unimplemented("unimplemented.")

    def _delay_s(self, requested: ProfileOptions) -> float:
        """Return the seconds until the requested start. A start in the past is now, as upstream."""
        if not requested.start_timestamp_ns:
            return 0.0
        delay_s: float = max(0.0, (requested.start_timestamp_ns - self._unix_ns()) / 1e9)
        if delay_s > _MAX_DELAY_S:
            raise InvalidArgument(
                f"start_timestamp_ns must be at most {_MAX_DELAY_S} s after the server's time; was {delay_s:.0f} s"
            )
        return delay_s

    async def _ends_within(self, seconds: float) -> bool:
        """Wait, and return whether the session's end was requested before the time was over."""
        try:
            await asyncio.wait_for(self._end.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def _run(self, options: TraceOptions, delay_s: float, duration_s: float, *, as_message: bool) -> bytes:
        """Run one session and return the response. A session that ends before its start has an empty trace."""
        try:
            if delay_s and await self._ends_within(delay_s):
                return encode_profile_response(b"", as_message=as_message)
            await asyncio.to_thread(self._tracer.start, options)
            await self._ends_within(duration_s)
            xspace = await asyncio.to_thread(self._tracer.stop)
            return await asyncio.to_thread(encode_profile_response, xspace, as_message=as_message)
        finally:
            self._session = None


def _options(requested: ProfileOptions) -> TraceOptions:
    """Convert the requested options. Version 0 means that none is set (profiler_options.proto)."""
    if requested.version == 0:
        return TraceOptions()
    return TraceOptions(min(requested.host_tracer_level, _MAX_HOST_LEVEL), min(requested.device_tracer_level, 1))
