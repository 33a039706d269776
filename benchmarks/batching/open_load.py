"""Open load generator: sends gRPC requests at random times, and measures latency from the scheduled times.

`open_load.py PORT BODY RATE SECONDS SEED` prints a `Seen` as JSON. BODY is a file with a framed request in h2load's
format. The times are a Poisson process that depends only on the seed, not on responses.
"""

import asyncio
import json
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import grpc

METHOD = "/tensorflow.serving.PredictionService/Predict"
CHANNELS = 4
_FRAME_HEADER_BYTES = 5
# A server that never answers must not block the generator forever.
_TIMEOUT_S = 10.0


@dataclass
class Seen:
    """Latencies of the responses and send delays of the generator in ms, both unordered, and calls by status."""

    latencies_ms: list[float] = field(default_factory=list)
    lags_ms: list[float] = field(default_factory=list)
    codes: dict[str, int] = field(default_factory=dict)


async def load(port: int, body: bytes, rate_per_s: float, seconds: float, seed: int) -> Seen:
    """Send for `seconds`, then wait for the last responses."""
    times = random.Random(seed)
    seen = Seen()
    # Channels to one target share a connection by default.
    channels = [
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(CHANNELS)
    ]
    calls: list[Any] = [channel.unary_unary(METHOD) for channel in channels]
    for channel in channels:
        await channel.channel_ready()
    tasks = set()
    end_s = time.monotonic() + seconds
    due_s = time.monotonic() + times.expovariate(rate_per_s)
    number = 0
    while due_s < end_s:
        if (wait_s := due_s - time.monotonic()) > 0:
            await asyncio.sleep(wait_s)
        task = asyncio.create_task(_one(calls[number % CHANNELS], body, due_s, seen))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        due_s += times.expovariate(rate_per_s)
        number += 1
    await asyncio.gather(*tasks)
    for channel in channels:
        await channel.close()
    return seen


async def _one(call: Any, body: bytes, due_s: float, seen: Seen) -> None:  # noqa: ANN401 - grpcio has no types
    seen.lags_ms.append(1000 * (time.monotonic() - due_s))
    try:
        await call(body, timeout=_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        code = error.code().name
    else:
        code = "OK"
        seen.latencies_ms.append(1000 * (time.monotonic() - due_s))
    seen.codes[code] = seen.codes.get(code, 0) + 1


def main() -> None:
    port, body, rate, seconds, seed = sys.argv[1:]
    message = Path(body).read_bytes()[_FRAME_HEADER_BYTES:]
    seen = asyncio.run(load(int(port), message, float(rate), float(seconds), int(seed)))
    print(json.dumps(asdict(seen)))


if __name__ == "__main__":
    main()
