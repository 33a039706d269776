"""An open load whose watcher stops it after it has blocked the process, while arrivals become due.

test_loadtest_early_stop runs it in a process of its own, because of gevent: `python -m tests.loadtests.late_watch
REST_URL MODEL GRACE`. With GRACE `none`, the stop leaves the dispatcher no time for the arrivals that are already due.

It prints JSON: the arrivals that were due until the stop, the requests and the dropped arrivals.
"""

import json
import sys
import time

from tpuserve_loadtests.traffic.gevent_setup import give_process_to_gevent

RATE_PER_S = 500
# The watcher blocks for this many arrivals of the schedule.
BLOCKED = 10


def main() -> None:
    """Run the load and print its counts."""
    give_process_to_gevent()
    from tpuserve_client.exchange import Exchange
    from tpuserve_client.model import ModelSpec, Signature
    from tpuserve_loadtests.arrivals.load import Load, RateProfile
    from tpuserve_loadtests.measurement.recorder import Counts
    from tpuserve_loadtests.requests.workload import Line, Workload
    from tpuserve_loadtests.traffic.engine import Engine
    from tpuserve_loadtests.traffic.target import Target

    url, model, grace = sys.argv[1:]
    body = json.dumps({"inputs": {"x": [[1.0, 2.0, 3.0, 4.0]]}}).encode()
    exchange = Exchange(f"/v1/models/{model}:predict", body)
    line = Line("rest", "rest", ModelSpec(model), Signature("serving_default", {}, {}), (exchange,), (1,))
    load = Load(60.0, profile=RateProfile.parse(str(RATE_PER_S), 60.0))

    with Engine(Target(Workload((line,)), {"rest": url}, 30.0)) as engine:

        def watch(elapsed_s: float, counts: Counts) -> str:
            if not counts.requests:
                return ""
            began_s = time.perf_counter()
            blocked_until_s = [due for due in load.instants() if due > elapsed_s][BLOCKED]
            while elapsed_s + time.perf_counter() - began_s < blocked_until_s:
                pass  # no other greenlet runs meanwhile, as while a terminal is drawn
            if grace == "none":
                engine.hurried.set()
            return "stopped early: a gate is certain"

        measured = engine.run(load, watch)
    due = sum(instant <= measured.span_s for instant in load.instants())
    counts = {"requests": measured.total.requests, "unanswered": measured.recorder.unanswered}
    print(json.dumps({"due": due, **counts, "dropped": measured.recorder.dropped}))


if __name__ == "__main__":
    main()
