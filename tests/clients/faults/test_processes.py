"""The client across os.fork(), in bursts of first calls, and across event loops. A server process counts the requests.

Rules: parent and child get their own answers and no error; concurrent first calls look up a model's metadata once; an
AsyncClient belongs to no event loop until a call, and works in the next loop.
"""

import pytest

from tests.clients.faults.cold_burst import OK, run_burst
from tests.clients.faults.event_loops import run_two_loops
from tests.clients.faults.fault_proxy import proxied
from tests.clients.faults.fork_loop import RIGHT, run_fork_loop
from tests.clients.faults.scripted_upstream import UpstreamProcess
from tests.clients.garbage import collected_at_end

FORK_CALLS = 100
BURST_CALLS = 200


def test_parent_and_child_get_their_own_answers(protocol: str, kind: str, slow_process: UpstreamProcess) -> None:
    with proxied(slow_process.addresses[protocol]) as (proxy, address):
        answers = run_fork_loop(kind, address, FORK_CALLS)
        # grpcio 1.83 may lose asyncio's poller in a child. The client then refuses the child's calls with the reason.
        refused = {RIGHT: FORK_CALLS // 2, "FailedPrecondition": FORK_CALLS // 2}
        assert answers == {RIGHT: FORK_CALLS} or ((protocol, kind) == ("grpc", "async") and answers == refused)
        assert proxy.connections > 1


def test_concurrent_first_calls_look_up_the_metadata_once(process: UpstreamProcess) -> None:
    burst = run_burst("cold client", process.addresses["rest"], BURST_CALLS)
    assert burst.outcomes == {OK: BURST_CALLS}
    assert process.executed() == {"GetModelMetadata": 1, "Predict": BURST_CALLS}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # asyncio.get_event_loop without a loop, in grpc.aio
@pytest.mark.filterwarnings("ignore:unclosed transport", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_client_of_a_module_works_in_each_event_loop(protocol: str, process: UpstreamProcess) -> None:
    with collected_at_end():  # the connections of the first loops, which a closed loop cannot close
        assert run_two_loops(process.addresses[protocol]) == ["ok"] * 4
