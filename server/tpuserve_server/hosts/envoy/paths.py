"""Paths that are no text, refused by Envoy.

Its embedding decodes paths as UTF-8 for the application. Where that fails, nobody is asked, and the client gets no
answer at all.
"""

from typing import Any

_ENVOY = "type.googleapis.com/envoy.extensions"

# One or more bytes of a character over 127 as a path has it (RFC 3986), in the forms of UTF-8 (RFC 3629, section 4).
# Factored, as Envoy takes expressions up to a size: everything but the last byte of 2, of 3, of 4 bytes.
_TAIL = "%[89ABab][0-9A-Fa-f]"
_FIRST_OF_TWO = "%[Cc][2-9A-Fa-f]|%[Dd][0-9A-Fa-f]"
_FIRST_OF_THREE = f"%[Ee](?:0%[ABab][0-9A-Fa-f]|[1-9A-Ca-cEFef]{_TAIL}|[Dd]%[89][0-9A-Fa-f])"
_FIRST_OF_FOUR = f"%[Ff](?:0%[9ABab][0-9A-Fa-f]|[1-3]{_TAIL}|4%8[0-9A-Fa-f]){_TAIL}"
HAS_ENCODED_BYTES = ".*%[89A-Fa-f][0-9A-Fa-f].*"
IS_TEXT = f"(?:[^%]|%[0-7][0-9A-Fa-f]|(?:{_FIRST_OF_TWO}|{_FIRST_OF_THREE}|{_FIRST_OF_FOUR}){_TAIL})*"

_POLICY = "path_is_no_text"


def path_filter() -> dict[str, Any]:
    """The HTTP filter that refuses them; one regular expression for any other path."""
    permissions = {
        "and_rules": {"rules": [_path(HAS_ENCODED_BYTES), {"not_rule": _path(IS_TEXT)}]},
    }
    policy = {"permissions": [permissions], "principals": [{"any": True}]}
    return {
        "name": "envoy.filters.http.rbac",
        "typed_config": {
            "@type": f"{_ENVOY}.filters.http.rbac.v3.RBAC",
            "rules": {"action": "DENY", "policies": {_POLICY: policy}},
        },
    }


def _path(pattern: str) -> dict[str, Any]:
    return {"url_path": {"path": {"safe_regex": {"regex": pattern}}}}
