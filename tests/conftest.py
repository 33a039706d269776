"""Common configuration of the tests. The lists tests/*.txt name the modules that `make test` and `.ci/run` exclude.

Tests with the same xdist_group share a process, and therefore the servers that they start. JAX always uses the CPU.
Property tests use the same examples each time, without a deadline per example.
"""

import functools
import gc
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.nodeid import NodeId
from hypothesis import settings

# TensorFlow reads this at its first import, which any test module may trigger. Tests of the values that the command and
# the server set themselves run processes without it.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# With libtpu installed, JAX searches for a TPU at startup and writes errors to standard error. Child processes of tests
# inherit this variable.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Hypothesis's profile for CI machines, which it selects by itself if the variable CI is set.
settings.load_profile("ci")


def read_modules(name: str) -> frozenset[Path]:
    """Return the test modules that a list in this directory names.

    Raises:
        FileNotFoundError: the list names a missing module.
    """
    listed = Path(__file__).with_name(name)
    lines = (line.partition("#")[0].strip() for line in listed.read_text().splitlines())
    return frozenset((listed.parent.parent / line).resolve(strict=True) for line in lines if line)


# The modules of each marker.
MARKED = {"rest": read_modules("rest.txt"), "deployment": read_modules("deployments.txt")}

# Folders whose tests run the layers that tests/coverage_floor.py checks. Coverage would only slow the other tests.
COVERED = [
    Path(__file__).parent / name
    for name in ("clients", "contract", "e2e", "faults", "formats", "oip_clients", "server")
]
# The same for the modules in these lists. Those of the other folders add little coverage to that of `make test`.
COVERED_REST = [Path(__file__).parent / name for name in ("contract", "server")]

# Number of new modules whose objects slow down garbage collection noticeably. See pytest_runtest_setup.
MANY_MODULES = 200
_modules_frozen = 0


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Pause garbage collection while modules are imported, because it would take a third of that time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import the modules that `-m "not MARKER"` deselects, because each process would spend seconds on them."""
    expression = config.getoption("markexpr")
    return (
        any(f"not {marker}" in expression and collection_path in modules for marker, modules in MARKED.items()) or None
    )


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Refuse modules that import Locust, which replaces threads in the whole process. gRPC then waits forever."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("threading"):
        pytest.exit(f"{report.nodeid} imports locust, which must not happen in pytest's process", returncode=3)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Exclude imported objects from garbage collection, because they are never garbage.

    With TensorFlow, Keras and 500 test modules, a collection takes 0.3 s. Keras and the exporter request several in
    each export, and would spend most of an export's time there.
    """
    global _modules_frozen
    if len(sys.modules) >= _modules_frozen + MANY_MODULES:
        _modules_frozen = len(sys.modules)
        gc.collect()
        gc.freeze()


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _ignored_signals() -> set[signal.Signals]:
    return {each for each in STOP_SIGNALS if signal.getsignal(each) == signal.SIG_IGN}


# Those that this process was started to ignore.
IGNORED_SIGNALS = _ignored_signals()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that leaves signals ignored: the processes of later tests would inherit that and never stop."""
    result = yield
    if left := _ignored_signals() - IGNORED_SIGNALS:
        for each in left:
            signal.signal(each, signal.SIG_DFL)
        pytest.fail(f"{item.nodeid} left {', '.join(sorted(each.name for each in left))} ignored", pytrace=False)
    return result


def pytest_itemcollected(item: pytest.Item) -> None:
    for marker in _markers(item.path):
        item.add_marker(marker)


@functools.cache
def _markers(module: Path) -> tuple[str, ...]:
    """Return the markers of all tests of a module. Without the cache, thousands of tests would repeat the search."""
    markers = tuple(marker for marker, modules in MARKED.items() if module in modules)
    covered = COVERED_REST if markers else COVERED
    return markers if any(module.is_relative_to(folder) for folder in covered) else (*markers, "no_cover")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Append the group names to the ids that xdist distributes by.

    pytest-xdist 3.8 writes them to `_nodeid`, which pytest 9.2 no longer reads. Groups would silently split, and each
    process would start every shared server. Does nothing for versions of xdist that handle this.
    """
    if not config.getoption("loadgroup", False):
        return
    for item in items:
        groups = sorted({str(mark.args[0]) for mark in item.iter_markers("xdist_group")})
        suffix = f"@{'_'.join(groups)}"
        if groups and not item.nodeid.endswith(suffix):
            item._id = NodeId.parse(item.nodeid + suffix)
