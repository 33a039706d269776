"""FormatError: bytes that are not what their format says. Every distribution maps it to an error of its own."""


class FormatError(ValueError):
    """Bytes or values that do not fit their format; the text says why, without naming a file or a tensor."""
