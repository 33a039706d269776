"""Python pickles, which the exporter does not read: unpickling runs any code that the file names."""

from pathlib import Path

_SUFFIXES = (".pkl", ".pickle", ".p")
# The first byte of protocols 2 and later, which the protocol's number follows.
_PROTO, _PROTOCOLS = 0x80, range(2, 6)


def is_pickle(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(2)
    return path.suffix in _SUFFIXES or (len(head) == 2 and head[0] == _PROTO and head[1] in _PROTOCOLS)


def explain_pickle(path: Path) -> str:
    """Describe the file with a command that converts it to a file of Flax, such as parameters of Haiku."""
    return (
        f"{path.name} is a Python pickle, and reading it would run code that it names. If you trust it, convert its "
        'tree of parameters to a Flax file, and export that: python -c "import pathlib, pickle, flax.serialization as '
        f"s; pathlib.Path('{path.stem}.msgpack').write_bytes(s.to_bytes(pickle.load(open('{path.name}', 'rb'))))\""
    )
