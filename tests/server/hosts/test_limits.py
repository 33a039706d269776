import resource

import pytest

from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.limits import find_connection_limit, raise_file_limit

NO_LIMIT = resource.RLIM_INFINITY


@pytest.mark.parametrize(("open_files", "connections"), [(1024, 384), (100_000, 10_000), (100, 1), (NO_LIMIT, 10_000)])
def test_connections_leave_files_for_models(monkeypatch: pytest.MonkeyPatch, open_files: int, connections: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (open_files, open_files))
    assert find_connection_limit(HostOptions()) == connections


@pytest.mark.parametrize(
    ("before", "hard", "after"),
    [
        (1024, 1 << 20, 20_256),
        (1024, NO_LIMIT, 20_256),
        (1024, 4096, 4096),
        (1 << 20, 1 << 20, None),
        (NO_LIMIT, NO_LIMIT, None),
    ],
)
def test_process_may_open_a_file_for_each_connection(
    monkeypatch: pytest.MonkeyPatch, before: int, hard: int, after: int | None
) -> None:
    set_limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (before, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_limits.append(limits))
    raise_file_limit(HostOptions())
    assert set_limits == ([] if after is None else [(after, hard)])
