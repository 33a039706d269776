"""Builder of HTML from elements. Text is escaped unless it is Markup."""

import html
from collections.abc import Iterable
from typing import TypeAlias


class Markup(str):
    """HTML that is inserted without escaping."""

    __slots__ = ()


Content: TypeAlias = "str | Iterable[str]"
_VOID = frozenset({"meta", "link", "input", "img", "circle", "line", "path", "rect"})


def escape(text: str) -> Markup:
    return text if isinstance(text, Markup) else Markup(html.escape(text))


def join(parts: Iterable[str]) -> Markup:
    return Markup("".join(escape(part) for part in parts))


def element(tag: str, *children: str, **attributes: str | float | bool | None) -> Markup:
    """Build an element. `class_` becomes class, `data_fate` becomes data-fate. Omits attributes of None or False."""
    named = "".join(_attribute(name, value) for name, value in attributes.items() if value not in (None, False))
    return Markup(f"<{tag}{named}/>" if tag in _VOID else f"<{tag}{named}>{join(children)}</{tag}>")


def _attribute(name: str, value: object) -> str:
    written = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {written}"
    text = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return f' {written}="{html.escape(text)}"'
