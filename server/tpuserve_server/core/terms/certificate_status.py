"""CertificateStatus: the expiry of the TLS certificates in use, and the outcome of the last attempt to replace them."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CertificateStatus:
    """The status of the certificates, without their texts.

    `expires_unix_s` is the earliest expiry in seconds since 1970: of the server's certificate and its intermediate
    certificates as `server`, and of the authorities of client certificates as `client_ca`. A certificate whose validity
    cannot be read is omitted. `reload_failure` is the reason why the last reload kept the certificates, or empty.
    """

    expires_unix_s: Mapping[str, float] = field(default_factory=dict)
    reload_failure: str = ""
