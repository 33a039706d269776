"""Envoy filter that refuses paths that are not UTF-8, or not percent-encoded.

The embedding decodes paths as UTF-8 for the application. If decoding fails, it does not call the application, and the
client gets no response.
"""

from typing import Any

_ENVOY = "type.googleapis.com/envoy.extensions"

# Percent-encoded bytes (RFC 3986) of characters over 127, in the forms of UTF-8 (RFC 3629, section 4). The patterns for
# 2, 3 and 4 bytes omit the common last byte, because Envoy limits the size of an expression.
_TAIL = "%[89ABab][0-9A-Fa-f]"
_FIRST_OF_TWO = "%[Cc][2-9A-Fa-f]|%[Dd][0-9A-Fa-f]"
_FIRST_OF_THREE = f"%[Ee](?:0%[ABab][0-9A-Fa-f]|[1-9A-Ca-cEFef]{_TAIL}|[Dd]%[89][0-9A-Fa-f])"
_FIRST_OF_FOUR = f"%[Ff](?:0%[9ABab][0-9A-Fa-f]|[1-3]{_TAIL}|4%8[0-9A-Fa-f]){_TAIL}"
HAS_ENCODED_BYTES = ".*%[89A-Fa-f][0-9A-Fa-f].*"
# A path is ASCII (RFC 3986), but over HTTP/2 clients can send any byte. Over HTTP/1 Envoy's parser refuses others.
IS_ASCII = "[ -~]*"
IS_TEXT = f"(?:[^%]|%[0-7][0-9A-Fa-f]|(?:{_FIRST_OF_TWO}|{_FIRST_OF_THREE}|{_FIRST_OF_FOUR}){_TAIL})*"

_POLICY = "path_is_no_text"


def path_filter() -> dict[str, Any]:
    """Return the HTTP filter that refuses such paths. Other paths usually cost two regular expressions."""
    is_no_text = {"and_rules": {"rules": [_path(HAS_ENCODED_BYTES), {"not_rule": _path(IS_TEXT)}]}}
    permissions = {"or_rules": {"rules": [{"not_rule": _path(IS_ASCII)}, is_no_text]}}
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
