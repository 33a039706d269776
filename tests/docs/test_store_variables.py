"""Test that the page on object stores lists every variable that the server refuses or ignores."""

from pathlib import Path

from tpuserve_server.storage import variables

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "serve" / "object-stores.md"


def test_the_page_lists_each_variable() -> None:
    page = PAGE.read_text()
    named = [*variables._REFUSED, *variables._WITHOUT_EFFECT]
    assert [name for name in named if f"`{name}`" not in page] == []
