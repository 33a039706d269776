from pathlib import Path

import pytest

from tpuserve_server.startup.options import cache_dir
from tpuserve_server.startup.validation import read_settings

SETTINGS = read_settings(model_base_path="/m")


def test_the_cache_lies_where_it_was_told_to_or_with_the_users_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    monkeypatch.setenv("HOME", "/home/u")
    assert cache_dir(read_settings(model_base_path="/m", storage_cache_dir=Path("/told"))) == Path("/told")
    assert cache_dir(SETTINGS) == Path("/caches/tpuserve")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir(SETTINGS) == Path("/home/u/.cache/tpuserve")


def test_a_user_without_a_home_has_one_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", _nobody)
    assert cache_dir(SETTINGS) == Path("/var/cache/tpuserve")


def _nobody(uid: int) -> None:
    raise KeyError(uid)
