"""Tests for markup and pages."""

from tpuserve_formats.markup import Markup, element, escape, join
from tpuserve_formats.page import render_document


def test_text_is_escaped_and_markup_is_not() -> None:
    assert element("p", "a < b", element("b", '"'), Markup("<i>x</i>")) == "<p>a &lt; b<b>&quot;</b><i>x</i></p>"
    assert escape(escape("&")) == "&amp;"
    assert join(["<", Markup("<br>")]) == "&lt;<br>"


def test_attributes_are_written_as_html_has_them() -> None:
    written = element("div", class_="wide", data_what='"x"', hidden=True, id=None, title=False, width=1.50, height=3)
    assert written == '<div class="wide" data-what="&quot;x&quot;" hidden width="1.5" height="3"></div>'


def test_elements_without_content_are_closed() -> None:
    assert element("path", d="M0 0") + element("img", src="data:,") == '<path d="M0 0"/><img src="data:,"/>'


def test_page_holds_all_that_it_needs_and_fetches_nothing() -> None:
    page = render_document("A < B", [element("p", "text")], style=Markup("p{}"), script=Markup("1 < 2"))
    assert page.startswith('<!doctype html>\n<html lang="en"><head>')
    assert "<title>A &lt; B</title>" in page
    assert "default-src &#x27;none&#x27;" in page
    assert "<style>p{}</style>" in page
    assert page.endswith("<body><main><p>text</p></main><script>1 < 2</script></body></html>\n")
