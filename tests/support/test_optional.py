"""CI never skips a test silently."""

import pytest

from tests.support.optional import cannot_run, skip_unless


def test_what_is_missing_is_skipped_outside_ci_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no index"):
        cannot_run("no index")
    assert not skip_unless(None, "no curl").args[0]
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="no index"):
        cannot_run("no index")
    assert skip_unless(None, "no curl").args[0]
    assert not skip_unless("/usr/bin/curl", "no curl").args[0]
