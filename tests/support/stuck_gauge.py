"""A device whose busy time takes as long as a test wants, so that work that reads it waits."""

import threading


class StuckGauge:
    """Reads of the busy time end after `gate` is set. `asked` is set at the first one."""

    name = "tpu:0"

    def __init__(self) -> None:
        self.reads = 0
        self.asked, self.gate = threading.Event(), threading.Event()

    def busy_s(self) -> float:
        self.reads += 1
        self.asked.set()
        self.gate.wait()
        return 0.0

    def memory_bytes(self) -> dict[str, int]:
        return {}
