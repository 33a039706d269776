"""Tests for the scan of large JSON bodies, against a parser."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuserve_server.core.serving.budgets import DecodedBudget
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.wire.json import layout
from tpuserve_server.wire.json.layout import Layout, Span

BUDGET = DecodedBudget(1 << 20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text('ab\\"[]{},:\u00e9 ', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('a\\"', max_size=3), inner, max_size=3),
    max_leaves=20,
)


@pytest.fixture(autouse=True, params=[0, 1 << 13], ids=["scans again", "keeps shallow structure"])
def _small_chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_CHUNK_BYTES", 7)
    monkeypatch.setattr(layout, "_MOST_SHALLOW", request.param)


@given(st.dictionaries(st.text('ab\\":,', max_size=4), VALUES, max_size=4), st.sampled_from([None, 2]))
def test_members_are_those_of_a_parser(document: dict[str, object], indent: int | None) -> None:
    found = Layout(json.dumps(document, indent=indent).encode(), BUDGET)
    assert {name: json.loads(found.text(span)) for name, span in found.members.items()} == document


@given(st.lists(VALUES, min_size=1, max_size=8), st.integers(1, 40))
def test_pieces_join_to_the_items_of_a_list(items: list[object], size: int) -> None:
    found = Layout(json.dumps({"a": items}).encode(), BUDGET)
    span = found.members["a"]
    start = found.body.index(b"[", span.start)
    stop = found.body.rindex(b"]", 0, span.stop)
    pieces = [found.text(piece) for piece in found.pieces(Span(start + 1, stop), size, depth=2)]
    assert [item for piece in pieces for item in json.loads(b"[%b]" % piece)] == items
    assert all(len(piece) >= size for piece in pieces[:-1])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", "nested more than 100 levels deep"),
        (b'{"a":1', "the document ends inside a value"),
        (b'{"a":"1}', "the document ends inside a value"),
        (b'{"a":1}}', "a bracket closes no value"),
        (b'{"a":1}{"b":1}', "text follows the document"),
        (b'x{"a":1}', "the document is not an object"),
        (b'{"a":1},2', "text follows the document"),
        (b'{"a":1} x', "text follows the document"),
        (b"[1,2]", "the document is not an object"),
        (b"{,}", "a member has no value"),
        (b"{a:1}", "Missing a name for object member"),
        (b'{"a":1,"a":2}', "duplicate key: a"),
        (b"{" + b",".join(b'"%d":0' % n for n in range(4097)) + b"}", "an object with more than 4096 members"),
    ],
)
def test_other_documents_are_refused(body: bytes, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        Layout(body, BUDGET)


@pytest.mark.parametrize("item", [b"[]", b"{}", b"0", b'""', b'{"a":0}'])
def test_documents_are_refused_before_their_objects_are_made(item: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_CHUNK_BYTES", 1 << 18)
    body = b'{"instances":[' + b",".join([item] * 200_000) + b"]}"
    with pytest.raises(InvalidArgument, match=r"more than the 1048576 bytes of max_decoded_bytes"):
        Layout(body, BUDGET)


def test_members_of_an_inner_object_are_found() -> None:
    found = Layout(b'{"a": {"b": [1, {"c": 2}], "d": "x"}, "e": 3}', BUDGET)
    inner = found.members_of(found.members["a"])
    assert {name: json.loads(found.text(span)) for name, span in inner.items()} == {"b": [1, {"c": 2}], "d": "x"}


def test_members_of_a_deep_object_are_found() -> None:
    found = Layout(b'{"a": [[[ {"b": 1, "c": {"d": 2}} ]]]}', BUDGET)
    start = found.body.index(b'{"b"')
    inner = found.members_of(Span(start - 1, found.body.index(b" ]]]")))
    assert {name: json.loads(found.text(span)) for name, span in inner.items()} == {"b": 1, "c": {"d": 2}}
