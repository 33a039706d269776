"""Load tests of model servers.

Locustfiles import these names:

    TpuserveUser     class of Locust users of a model server, as the base of own classes
    GrpcPredictUser, RestPredictUser, OipUser
                     the same for one protocol
    Payloads         payloads of such a class, encoded before the run
    Rows             rows of data for requests, from CSV, TFRecord or recorded requests
    RequestFailed    error of a failed request in a task
    PredictUser      class of Locust users that send the requests of `tpuserve loadtest run`

The subpackages are private.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuserve_loadtests.locustfiles.client import RequestFailed
    from tpuserve_loadtests.locustfiles.predict_user import PredictUser
    from tpuserve_loadtests.locustfiles.users import (
        GrpcPredictUser,
        OipUser,
        Payloads,
        RestPredictUser,
        TpuserveUser,
    )
    from tpuserve_loadtests.requests.rows import Rows

__all__ = [
    "GrpcPredictUser",
    "OipUser",
    "Payloads",
    "PredictUser",
    "RequestFailed",
    "RestPredictUser",
    "Rows",
    "TpuserveUser",
]

_MODULES = {
    **dict.fromkeys(("GrpcPredictUser", "OipUser", "Payloads", "RestPredictUser", "TpuserveUser"), "locustfiles.users"),
    "PredictUser": "locustfiles.predict_user",
    "RequestFailed": "locustfiles.client",
    "Rows": "requests.rows",
}

if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> object:
        """Import a name at its first use, because the commands' `--help` must not wait for Locust.

        The import makes the process cooperative, as the import of Locust does, and with the same exception.
        """
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if "LOCUST_SKIP_MONKEY_PATCH" not in os.environ:
            from tpuserve_loadtests.traffic.gevent_setup import give_process_to_gevent

            give_process_to_gevent()
        globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
