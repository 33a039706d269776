"""RawHeaders: headers that are decoded one by one, because the guard needs few of them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar, overload

_Default = TypeVar("_Default")


def find_header(headers: Sequence[tuple[bytes, bytes]], name: str) -> str | None:
    """Return the values of a header, joined by commas, or None. Names are lower case, as ASGI requires."""
    wanted = name.encode()
    found = [value for each, value in headers if each == wanted]
    if not found:
        return None
    return (found[0] if len(found) == 1 else b",".join(found)).decode("latin-1")


class RawHeaders(Mapping[str, str]):
    """Headers by name. Names are lower case; the values of one name are joined by commas, in order."""

    __slots__ = ("_headers",)

    def __init__(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Search `headers`, whose names are lower case, as ASGI requires."""
        self._headers = headers

    def __getitem__(self, key: str) -> str:
        value = find_header(self._headers, key)
        if value is None:
            raise KeyError(key)
        return value

    @overload
    def get(self, key: str) -> str | None: ...

    @overload
    def get(self, key: str, default: str | _Default) -> str | _Default: ...

    def get(self, key: str, default: str | _Default | None = None) -> str | _Default | None:
        """Return the value of a header, or `default`. Faster than the inherited method, which catches an error."""
        value = find_header(self._headers, key)
        return default if value is None else value

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name.decode("latin-1") for name, _ in self._headers))

    def __len__(self) -> int:
        return len({name for name, _ in self._headers})
