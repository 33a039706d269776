"""Parts of the cases that no test here covers, with the reason. `make faults` prints them."""

from typing import Final

NOT_TESTED: Final[dict[int, tuple[str, ...]]] = {
    14: ("headers of which a byte comes before each timeout: h2corn's timeout is of a pause. SECURITY.md, Transport",),
    18: (
        "clients of another address: the server of a test binds loopback alone; tests/server/protocols/test_control.py",
    ),
    19: ("floods of other frames: tests/server/hosts/http2",),
    22: ("goodput is a benchmark: python -m benchmarks simulate overload",),
    26: ("a lost device: a CPU cannot be lost; tests/server/executors/pjrt/test_devices.py has the failures",),
    30: ("a second signal, and SIGTERM while loading: tests/server/hosts/test_host_lifecycle.py",),
    33: ("goodput is a benchmark: python -m benchmarks simulate overload",),
    39: ("what SIGKILL leaves: tests/server/hosts/test_host_lifecycle.py and test_runtime_folder.py",),
    40: ("20,000 pipelined requests: tests/server/hosts/test_strangers.py",),
    42: ("a reload from another address: as 18",),
    49: ("more than 200 deadlines in 10 s end their connection, as a rapid reset does: tests/server/hosts/http2",),
}
