"""Tests that docs/how-to/operate/access.md lists the roles of all routes, and that its examples work."""

import re

from tests.deploy.dockerfile import ROOT
from tests.docs.access_table import access_table, written_table
from tests.support.access import TokenIssuer
from tpuserve_server.access.access import ROLE_NAMES
from tpuserve_server.access.credentials import parse_credentials
from tpuserve_server.access.tokens import LEEWAY_S, MAX_TOKEN_BYTES, parse_jwks

PAGE = (ROOT / "docs/how-to/operate/access.md").read_text(encoding="utf-8")


def test_the_table_of_roles_is_made_of_the_declarations() -> None:
    assert written_table(PAGE) == access_table(), "Run: python -m tests.docs.access_table"


def test_the_lines_with_certificates_are_valid() -> None:
    lines = "".join(f"{line}\n" for line in PAGE.splitlines() if re.match(r"\w+ +[a-z,]+ +'?certificate:", line))
    names = {identity.name for identity in parse_credentials(lines).certificates.values()}
    assert names == {"robot", "shop", "operator"}


def test_the_page_has_the_roles_and_limits_of_the_code() -> None:
    assert all(f"| `{role}` |" in PAGE for role in ROLE_NAMES)
    assert f"{MAX_TOKEN_BYTES // 1024} KiB" in PAGE
    assert f"{LEEWAY_S:g} s of tolerance" in PAGE
    (rsa,), (ec,) = (parse_jwks(TokenIssuer(kind).jwks()).values() for kind in ("RSA", "EC"))
    assert [*rsa.algorithms] == ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"]
    assert [*ec.algorithms] == ["ES256"]
    assert "RS256 to RS512, PS256 to PS512, ES256 to ES512 or EdDSA" in PAGE
