"""Errors of signing. They need no cryptography, so the server's supervisor can name them without its 3 MB."""


class BadKey(ValueError):
    """A file has no usable key. The message has the file's path and a remedy."""


class BadSignature(ValueError):
    """A version has no valid signature of a trusted key. The message gives the reason, as the end of a sentence."""
