"""Text for sizes, times, differences, shares and long lists."""

from collections.abc import Iterable


def megabytes(size_bytes: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.3g} {unit}"
    return f"{size_bytes:.0f} B"


def seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{value * 1000:.0f} ms"


def difference(value: float | None) -> str:
    """Return the difference as text. None stands for infinity, which JSON does not have."""
    return "∞" if value is None else "0" if value == 0 else f"{value:.2e}"


def percent(part: float | None) -> str:
    return "-" if part is None else "100 %" if part == 1 else f"{100 * part:.2f} %"


def first(names: Iterable[object], most: int = 5) -> str:
    """Return the first `most` of the names and the number of the others: `a, b and 3 more`."""
    listed = list(map(str, names))
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")
