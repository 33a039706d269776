"""Header lines: the form in which an input holds the headers of a request."""

RawHeaders = list[tuple[bytes, bytes]]


def read_lines(data: bytes) -> tuple[RawHeaders, bytes]:
    """Return the headers, one a line as `name: value`, and the rest after an empty line. Names become lower case."""
    head, _, rest = data.partition(b"\n\n")
    lines = [line.partition(b":") for line in head.split(b"\n")]
    return [(name.strip().lower(), value.strip()) for name, _, value in lines if name.strip()], rest
