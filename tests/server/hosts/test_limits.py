import resource

import pytest

from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.limits import find_connection_limit


@pytest.mark.parametrize(
    ("open_files", "connections"),
    [(1024, 384), (100_000, 10_000), (100, 1), (resource.RLIM_INFINITY, 10_000)],
)
def test_connections_leave_files_for_models(monkeypatch: pytest.MonkeyPatch, open_files: int, connections: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (open_files, open_files))
    assert find_connection_limit(HostOptions()) == connections
