"""Names of a client's certificate: Envoy verifies the certificate and passes its names on in headers of its own.

Each kind of name has a header, unlike in x-forwarded-client-cert, where a name can contain the separators and so pass
for one of another kind.
"""

from typing import TYPE_CHECKING, Any, Final

from tpuserve_server.identity.certificate import CertificateNames

if TYPE_CHECKING:
    from starlette.types import Scope

_SUBJECT: Final = "x-tpuserve-client-subject"
_URI: Final = "x-tpuserve-client-uri"
_DNS: Final = "x-tpuserve-client-dns"
# Envoy joins the names of one kind by commas.
_VALUES: Final = {
    _SUBJECT: "%DOWNSTREAM_PEER_SUBJECT%",
    _URI: "%DOWNSTREAM_PEER_URI_SAN%",
    _DNS: "%DOWNSTREAM_PEER_DNS_SAN%",
}
# Envoy's text for a name that the certificate does not have.
_NONE: Final = "-"
CERTIFICATE_HEADERS: Final = frozenset(name.encode() for name in _VALUES)
_ENVOY: Final = "type.googleapis.com/envoy.extensions"


def certificate_filter() -> dict[str, Any]:
    """Return the HTTP filter that sets the headers, and removes those that a client sent."""
    removals = [{"remove": name} for name in _VALUES]
    additions = [
        {"append": {"header": {"key": name, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}}
        for name, value in _VALUES.items()
    ]
    return {
        "name": "envoy.filters.http.header_mutation",
        "typed_config": {
            "@type": f"{_ENVOY}.filters.http.header_mutation.v3.HeaderMutation",
            "mutations": {"request_mutations": [*removals, *additions]},
        },
    }


def names_of_scope(scope: "Scope") -> CertificateNames:
    """Return the names in the headers of a request that passed the filter.

    A URI may contain commas, so several URIs are one text, which no credential names.
    """
    found = {name: value.decode("latin-1") for name, value in scope["headers"] if name in CERTIFICATE_HEADERS}
    subject, uri, dns = (found.get(name.encode(), _NONE) for name in _VALUES)
    return CertificateNames(
        "" if subject == _NONE else subject,
        () if uri == _NONE else (uri,),
        () if dns == _NONE else tuple(dns.split(",")),
    )
