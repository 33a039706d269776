"""Modules that tests/rest.txt lists are marked `rest`: `make test` leaves them out.

Tests with one xdist_group share a process, and so the servers that they start; JAX is on the CPU in all.

Properties are tested with the same examples each time, and however long one takes on a busy machine.
"""

import gc
import os
import sys
from pathlib import Path

import pytest
from _pytest.nodeid import NodeId
from hypothesis import settings

# TensorFlow reads it when it is first imported, which may be by any module of tests. What the command and the server
# ask for themselves is looked at in processes without it.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# With libtpu installed JAX looks for a TPU when it starts, and writes what it did not find to standard error. Set for
# the processes that tests start, too.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Hypothesis' own for such machines; it would choose it by itself where it finds a variable CI.
settings.load_profile("ci")


REST = Path(__file__).with_name("rest.txt")


def read_rest() -> frozenset[Path]:
    """Modules of tests that `make test` leaves out.

    Raises:
        FileNotFoundError: The list names a module that is gone.
    """
    lines = (line.partition("#")[0].strip() for line in REST.read_text().splitlines())
    return frozenset((REST.parent.parent / line).resolve(strict=True) for line in lines if line)


LEFT_OUT = read_rest()

# Imports that bring so many modules leave enough objects for the garbage collector to be worth a word: see below.
MANY_MODULES = 200
_modules_frozen = 0


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Keep the garbage collector from walking through what imports made, which is never garbage.

    A collection takes 0.3 s beside TensorFlow, Keras and 500 modules of tests. Keras and the exporter ask for several
    in each export: without this they take most of its time.
    """
    global _modules_frozen
    if len(sys.modules) >= _modules_frozen + MANY_MODULES:
        _modules_frozen = len(sys.modules)
        gc.collect()
        gc.freeze()


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path in LEFT_OUT:
        item.add_marker("rest")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Name the groups in the ids that xdist distributes by.

    pytest-xdist 3.8 writes them where pytest 9.2 no longer looks (`_nodeid`): its groups would come apart without a
    word, and each process would start every shared server. Nothing to do where an xdist does it itself.
    """
    if not config.getoption("loadgroup", False):
        return
    for item in items:
        groups = sorted({str(mark.args[0]) for mark in item.iter_markers("xdist_group")})
        suffix = f"@{'_'.join(groups)}"
        if groups and not item.nodeid.endswith(suffix):
            item._id = NodeId.parse(item.nodeid + suffix)
