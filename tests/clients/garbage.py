"""Garbage collection at a known moment."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected_at_end() -> Iterator[None]:
    """Collect garbage at the end of the block, and not before, so that its warnings belong to the current test.

    A server's thread could otherwise start a collection. `gc.collect` does nothing while another thread collects.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.enable()
