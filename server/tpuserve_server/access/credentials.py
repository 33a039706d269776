"""Credentials: the API keys and client certificates of a credentials file, each with its identity.

A line of the file is `NAME ROLES CREDENTIAL [MODELS]`. CREDENTIAL is `sha256:HEX`, the hash of a key, or
`certificate:NAME`. ROLES and MODELS are separated by commas. Quotes keep spaces, and `#` begins a comment.

A key has 256 random bits, so nobody can find it from its hash by trying. A slow hash, as for passwords, would protect
nothing and would take milliseconds of each request.
"""

import hashlib
import hmac
import itertools
import secrets
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tpuserve_server.access.access import Identity, ModelNames, parse_roles

# Scanners for leaked secrets find keys by it.
KEY_PREFIX: Final = "tpuserve_"
_KEY_BYTES: Final = 32


def make_key() -> str:
    """Return a new random key in ASCII."""
    return f"{KEY_PREFIX}{secrets.token_urlsafe(_KEY_BYTES)}"


def digest_of(secret: str) -> bytes:
    """Return the SHA-256 of a key or a token, whose bytes a header's text has as Latin-1."""
    return hashlib.sha256(secret.encode("latin-1", "replace")).digest()


@dataclass(frozen=True, slots=True)
class CertificateNames:
    """The names of a certificate that an authority of the server's operator has signed.

    `subject` has the form of RFC 4514 and RFC 2253: the most specific part first, such as `CN=client,O=Example`.
    """

    subject: str = ""
    uris: tuple[str, ...] = ()
    dns: tuple[str, ...] = ()

    def references(self) -> "Iterator[Reference]":
        """Yield the references that name this certificate: its URIs, its DNS names, then its subject."""
        for uri in self.uris:
            yield ("uri", uri)
        for name in self.dns:
            yield ("dns", name)
        if self.subject:
            yield ("subject", self.subject)


# A kind of name, and the name. Kinds are separate, so that no DNS name can pass for a subject.
Reference: TypeAlias = tuple[str, str]
# Returns the names of the client's certificate, or None for a client without one.
FindCertificate: TypeAlias = Callable[[], CertificateNames | None]

# Key of an ASGI scope with a FindCertificate. Hosts set it, and clients cannot.
CERTIFICATE_KEY: Final = "tpuserve.certificate"


def no_certificate() -> None:
    """Return None: the client has no certificate (FindCertificate)."""
    return


def parse_reference(text: str) -> Reference:
    """Return the reference of a text: a URI, a subject such as `CN=client,O=Example`, or a DNS name."""
    if "://" in text:
        return ("uri", text)
    return ("subject", text) if "=" in text else ("dns", text)


_KEY, _CERTIFICATE = "sha256", "certificate"
_HEX_DIGITS: Final = 64
_INDEX_BYTES: Final = 8
_MOST_NAME_CHARACTERS: Final = 64
_FORM: Final = "expected NAME ROLES sha256:HEX [MODELS] or NAME ROLES certificate:NAME [MODELS]"


class CredentialsError(Exception):
    """A file of credentials, keys or tokens cannot be used. The message has neither its path nor a credential."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The identities of a file: by the first bytes of the SHA-256 of their keys, and by a name in their certificates.

    The time of a search for a key depends on the hash of the sent text, which reveals nothing of a key, and the rest of
    the hash is compared in constant time.
    """

    keys: Mapping[bytes, tuple[bytes, Identity]] = field(default_factory=dict, repr=False)
    certificates: Mapping[Reference, Identity] = field(default_factory=dict)

    def find_key(self, digest: bytes) -> Identity | None:
        """Return the identity of a key by its SHA-256, or None for an unknown one."""
        found = self.keys.get(digest[:_INDEX_BYTES])
        return found[1] if found is not None and hmac.compare_digest(found[0], digest) else None

    def find_certificate(self, names: CertificateNames) -> Identity | None:
        """Return the identity of a certificate, or None for an unknown one."""
        return next((found for name in names.references() if (found := self.certificates.get(name))), None)


def parse_credentials(text: str) -> Credentials:
    """Return the credentials of a file. Two lines may have one name, so that a client can change its key.

    Raises:
        CredentialsError: a line is invalid, or repeats a credential: the message has its number. Or there is no line,
            or the last line has no end.
    """
    if text and not text.endswith(("\n", "\r")):
        # A line that is cut off may lack its models, and would then allow all of them.
        raise CredentialsError("the last line has no end. Another program may still write the file")
    keys: dict[bytes, tuple[bytes, Identity]] = {}
    certificates: dict[Reference, Identity] = {}
    for number, line in enumerate(text.splitlines(), 1):
        try:
            words = _split(line)
            if words:
                _add(words, keys, certificates)
        except ValueError as error:
            raise CredentialsError(f"line {number}: {error}") from None
    if not (keys or certificates):
        # A file that is being written can be empty.
        raise CredentialsError("the file has no credential")
    return Credentials(keys, certificates)


def _split(line: str) -> list[str]:
    """Return the words before a comment, which begins a word: within one, `#` belongs to a name. Raises ValueError."""
    lexer = shlex.shlex(line, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    # Lazy, because a comment may have a single quote.
    return list(itertools.takewhile(lambda word: not word.startswith("#"), lexer))


def _add(
    words: Sequence[str], keys: dict[bytes, tuple[bytes, Identity]], certificates: dict[Reference, Identity]
) -> None:
    """Add the credential of a line. Raises ValueError."""
    credential, identity = _parse_words(words)
    if isinstance(credential, bytes):
        if credential[:_INDEX_BYTES] in keys:
            raise ValueError("an earlier line has the same key")
        keys[credential[:_INDEX_BYTES]] = (credential, identity)
    else:
        if credential in certificates:
            raise ValueError("an earlier line has the same certificate")
        certificates[credential] = identity


def _parse_words(words: Sequence[str]) -> tuple[bytes | Reference, Identity]:
    """Return the credential of a line and its identity. Raises ValueError."""
    if not 3 <= len(words) <= 4:
        raise ValueError(f"{len(words)} words, {_FORM}")
    name, roles, credential, *models = words
    if not name or len(name) > _MOST_NAME_CHARACTERS or not name.isprintable():
        raise ValueError(f"the name must have 1 to {_MOST_NAME_CHARACTERS} printable characters")
    names = ModelNames(_parse_models(models[0])) if models else None
    return _parse_credential(credential), Identity(name, parse_roles(roles), names)


def _parse_credential(text: str) -> bytes | Reference:
    kind, _, value = text.partition(":")
    if kind == _CERTIFICATE and value:
        return parse_reference(value)
    if kind != _KEY:
        # The third word may be a key itself, which must not appear in a log.
        raise ValueError(f"the credential has no known kind, {_FORM}")
    if len(value) != _HEX_DIGITS or not value.isascii():
        raise ValueError(f"sha256 must have {_HEX_DIGITS} hexadecimal digits")
    try:
        return bytes.fromhex(value)
    except ValueError:
        raise ValueError(f"sha256 must have {_HEX_DIGITS} hexadecimal digits") from None


def _parse_models(text: str) -> list[str]:
    names = text.split(",")
    if not all(names):
        raise ValueError("the list of models has an empty name")
    return names
