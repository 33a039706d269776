import sys
import threading
from pathlib import Path

import pytest

from tpuserve_server.core.system.thread_name import name_thread

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel keeps names of threads on Linux")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("device-digits-1", "device-digits-1"),
        ("device-recommender-12", "device-recommen"),
        # A character of two bytes would be cut in two.
        ("device-digits-ä", "device-digits-"),
    ],
)
def test_the_kernel_keeps_the_beginning_of_a_threads_name(name: str, expected: str) -> None:
    found: list[str] = []

    def run() -> None:
        name_thread()
        comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
        found.append(comm.read_text().rstrip("\n"))

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join()
    assert found == [expected]
