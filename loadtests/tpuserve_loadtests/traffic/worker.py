"""`python -m tpuserve_loadtests.traffic.worker HOST PORT`: a process of the load generator that a coordinator leads."""

import os
import signal
import sys
from uuid import uuid4


def main() -> None:
    """Run what the coordinator sends until it says to quit, or is gone."""
    from tpuserve_loadtests.traffic.gevent_setup import give_process_to_gevent

    give_process_to_gevent()
    host, port = sys.argv[1:]
    if not sys.stdin.isatty():
        _end_with_coordinator()
    serve(host, int(port))


def serve(host: str, port: int) -> None:
    """Connect to the coordinator and do what it says; returns when it says quit."""
    import gevent
    from gevent.queue import Queue
    from locust.rpc import Message, zmqrpc

    from tpuserve_loadtests.arrivals.load import Load
    from tpuserve_loadtests.measurement.recorder import Counts
    from tpuserve_loadtests.traffic.engine import Engine
    from tpuserve_loadtests.traffic.target_wire import target_from_wire

    name = uuid4().hex
    client = zmqrpc.Client(host, port, name)
    client.send(Message("ready", None, name))
    loads: Queue[Load | None] = Queue()

    def watch(_: float, counts: Counts) -> str:
        client.send(Message("counts", [counts.requests, counts.failures, list(counts.late), counts.wrong], name))
        return ""

    def obey(engine: Engine) -> None:
        while True:
            message = client.recv()
            if message.type == "load":
                loads.put(Load.from_wire(message.data))
            elif message.type == "stop":
                engine.interrupted.set()
            else:
                engine.interrupted.set()
                loads.put(None)
                return

    first = client.recv()
    if first.type != "target":
        return
    with Engine(target_from_wire(first.data), share=tuple(first.data["share"])) as engine:
        gevent.spawn(obey, engine)
        while (load := loads.get()) is not None:
            engine.interrupted.clear()
            measured = engine.run(load, watch)
            report = {"recorder": measured.recorder.to_wire(), "span_s": measured.span_s, "cores": measured.cores[0]}
            client.send(Message("measured", report, name))
    client.close(linger=1000)


def _end_with_coordinator() -> None:
    """This process has nobody to tell once the one that started it is gone: its input ends then."""
    import gevent
    from gevent.os import tp_read

    def watch() -> None:
        while tp_read(sys.stdin.fileno(), 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    gevent.spawn(watch)


if __name__ == "__main__":
    main()
