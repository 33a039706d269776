"""Signature files of versions, in tpuserve's form and that of OpenSSF Model Signing, as the server reads them."""

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, derive_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.fuzz.target import Target, expect
from tpuserve_formats.signing.bundle import SignatureBundle
from tpuserve_formats.signing.errors import BadSignature
from tpuserve_formats.signing.keys import PublicKey, key_id
from tpuserve_formats.signing.signature import SignatureFile

# Fixed, so that entries of the corpus may have valid signatures by them.
OWN, ECDSA = Ed25519PrivateKey.from_private_bytes(bytes(32)), derive_private_key(1, SECP256R1())
_TRUSTED: dict[str, PublicKey] = {
    key_id(OWN.public_key()): OWN.public_key(),
    key_id(ECDSA.public_key()): ECDSA.public_key(),
}
MANIFEST = b'{"format_version": 1}'


def run(data: bytes) -> bool:
    """Read a signature file in both forms, and its subject before any verification."""
    accepted = [_signer(form, data) for form in (SignatureFile, SignatureBundle)]
    return any(accepted)


def _signer(form: type[SignatureFile] | type[SignatureBundle], data: bytes) -> bool:
    try:
        parsed = form.parse(data)
        if isinstance(parsed, SignatureBundle):
            _ = parsed.subject
        signer = parsed.find_signer(MANIFEST, "m", 3, _TRUSTED)
    except BadSignature:
        return False
    expect(signer in _TRUSTED, "an unknown key signed it")
    return True


TARGET = Target(
    run,
    words=(
        b'"signatures":', b'"public_key":', b'"model":', b'"version":3', b'"signature":', b'"verificationMaterial":',
        b'"publicKey":', b'"hint":', b'"dsseEnvelope":', b'"payload":"e30="', b'"payloadType":', b'"sig":"AA=="',
    ),
)  # fmt: skip
