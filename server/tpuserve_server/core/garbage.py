"""The garbage collector's settings: what of the process it never walks, and how often it does walk the rest."""

import gc

# Allocations of containers, less those freed, between collections. A request makes some fifty, which die by reference
# count; 700, the default before Python 3.13, would walk the young ones of a few dozen requests at a time to find
# nothing. On the Python host, though, grpcio leaves a cycle of six objects behind each call (`_find_method_handler`,
# whose inner function refers to itself), and many of them stop everything for long: 20,000 for 5 ms.
_THRESHOLDS = (2_000, 20, 50)


def settle_garbage_collector() -> None:
    """Leave what is there now out of later collections; to be called whenever much was imported.

    TensorFlow's import leaves a million objects that live as long as the process. A full collection walks them all with
    the interpreter's lock held: 150 ms in which no request is answered, and the whole of p99 under load. JAX's
    take 20 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
