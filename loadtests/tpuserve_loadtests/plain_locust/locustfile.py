"""What a locustfile needs: a class of users that send predict requests, in a process that was handed to gevent."""

from typing import Any

from tpuserve_loadtests.traffic.gevent_setup import give_process_to_gevent
from tpuserve_loadtests.workload import Protocol


def predict_users(*protocols: Protocol) -> type[Any]:  # Locust ships no annotations
    """Users of these protocols; Locust's events are listened to from now on. Call it once, in the locustfile itself."""
    give_process_to_gevent()
    # Only now: these import gRPC.
    from locust import events

    from tpuserve_loadtests.plain_locust.suite import Suite

    suite = Suite(protocols)
    suite.listen(events)
    return suite.user_class()
