"""Property tests of lines with text from clients and models."""

import json
import logging
import unicodedata
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuserve_server.observe.logs.configuration import CONTINUATION, escape, indent, line_formatter
from tpuserve_server.observe.logs.log_format import LogFormat

HOSTILE = st.text(
    st.one_of(st.characters(), st.sampled_from("\n\r\x1b\x9b\x85\u2028\u202e\ud800\x00\x7f\"'\\ =")), max_size=60
)
FORMATS: list[LogFormat] = ["text", "console", "json"]


def record_of(message: str, fields: Mapping[str, object], traceback: str = "") -> logging.LogRecord:
    record = logging.LogRecord("tpuserve_server.x", logging.ERROR, "x.py", 1, message, None, None)
    record.__dict__.update(fields=fields, traceback=traceback)
    return record


def is_safe(text: str) -> bool:
    return not any(unicodedata.category(one) in ("Cc", "Cs", "Zl", "Zp") for one in text)


@given(HOSTILE)
def test_escaped_text_is_one_line_without_control_characters(text: str) -> None:
    escaped = escape(text)
    assert is_safe(escaped)
    assert len(escaped.splitlines()) <= 1
    escaped.encode()


def test_plain_text_stays_as_it_is() -> None:
    text = "größer than 3 — 日本語 '\\d'"
    assert escape(text) == text
    assert escape("a\tb\n\x1b[31m\x9b\u2028\u202e\ud800") == r"a\tb\n\x1b[31m\x9b\u2028\u202e\ud800"


@pytest.mark.parametrize("log_format", FORMATS)
@given(message=HOSTILE, value=HOSTILE, traceback=HOSTILE)
def test_no_text_begins_an_event_or_reaches_the_terminal(
    log_format: LogFormat, message: str, value: str, traceback: str
) -> None:
    fields = {"model": value, "nested": {"name": value}, "level": value, "timestamp": value, "event": value}
    first, *others = line_formatter(log_format).format(record_of(message, fields, traceback)).split("\n")
    assert all(line.startswith(CONTINUATION) for line in others)
    assert all(is_safe(line) for line in (first, *others))
    assert len(others) == (0 if log_format == "json" or not traceback else len(indent(traceback).split("\n")) - 1)


@given(message=HOSTILE, value=HOSTILE, traceback=HOSTILE)
def test_json_has_the_original_text(message: str, value: str, traceback: str) -> None:
    line = line_formatter("json").format(record_of(message, {"model": value, "level": "other"}, traceback))
    event = json.loads(line)
    assert event["message"] == message.rstrip("\n")
    assert event["model"] == value
    assert event.get("exception", "") == traceback
    assert event["level"] == "ERROR"


@given(first=HOSTILE, second=HOSTILE)
def test_a_value_cannot_imitate_another_field(first: str, second: str) -> None:
    line = line_formatter("text").format(record_of("m", {"a": first, "b": second}))
    assert line.count(" a=") + line.count(" b=") >= 2
    rest = line.split(": m a=", 1)[1]
    if rest.startswith('"'):
        value, end = json.JSONDecoder().raw_decode(rest.replace("\\x", "\\u00"))
        assert isinstance(value, str)
        assert rest.replace("\\x", "\\u00")[end:].startswith(" b=")
    else:
        assert rest.startswith(f"{first} b=")


def test_fields_may_be_computed_when_the_line_is_written() -> None:
    record = record_of("m", {})
    record.__dict__["fields"] = lambda: {"rows": 3}
    assert line_formatter("text").format(record).endswith(": m rows=3")


def test_the_stack_of_a_record_is_indented_too() -> None:
    record = record_of("m", {})
    record.stack_info = "Stack (most recent call last):\n  here"
    assert line_formatter("text").format(record).endswith("m\n    Stack (most recent call last):\n      here")
