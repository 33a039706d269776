"""FormatError for bytes that violate their format. Every distribution maps it to its own error."""


class FormatError(ValueError):
    """Bytes or values that violate their format. The message gives the reason without a file or tensor name."""
