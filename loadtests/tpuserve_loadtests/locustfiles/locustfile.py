"""Factory for locustfiles: a class of users that send Predict requests, in a process that gevent has patched."""

from typing import Any

from tpuserve_loadtests.requests.protocols import Port
from tpuserve_loadtests.traffic.gevent_setup import give_process_to_gevent


def predict_users(*ports: Port) -> type[Any]:  # Locust ships no annotations
    """Return a user class for these ports, and register listeners for Locust's events.

    Call it once, in the locustfile itself.
    """
    give_process_to_gevent()
    # These import gRPC, which must follow the gevent setup.
    from locust import events

    from tpuserve_loadtests.locustfiles.suite import Suite

    suite = Suite(ports)
    suite.listen(events)
    return suite.user_class()
