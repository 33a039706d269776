"""Tests for `tpuserve key`."""

import pytest
from click.testing import CliRunner

from tpuserve_server.access.access import Role
from tpuserve_server.access.credentials import digest_of, parse_credentials
from tpuserve_server.startup.key import key


def test_the_line_accepts_the_key_and_does_not_have_it() -> None:
    result = CliRunner().invoke(key, ["shop", "--roles", "predict,read", "--models", "digits,shop-*"])
    assert result.exit_code == 0
    secret = result.stderr.removeprefix("Key of shop: ").strip()
    assert secret.startswith("tpuserve_")
    assert secret not in result.stdout
    identity = parse_credentials(result.stdout).find_key(digest_of(secret))
    assert identity is not None
    assert (identity.name, identity.roles) == ("shop", frozenset((Role.PREDICT, Role.READ)))
    assert (identity.allows("shop-1"), identity.allows("other")) == (True, False)


def test_a_name_with_spaces_is_quoted() -> None:
    result = CliRunner().invoke(key, ["the shop # 1", "--roles", "read"])
    (identity,) = [found for _, found in parse_credentials(result.stdout).keys.values()]
    assert identity.name == "the shop # 1"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["shop"], "Missing option '--roles'"),
        (["shop", "--roles", "write"], "unknown role, expected some of predict, read, control"),
        (["", "--roles", "read"], "the name must have 1 to 64 printable characters"),
        (["shop", "--roles", "read", "--models", "a,"], "the list of models has an empty name"),
    ],
)
def test_wrong_arguments_make_no_key(arguments: list[str], reason: str) -> None:
    result = CliRunner().invoke(key, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in result.stderr
    assert "tpuserve_" not in result.stderr
