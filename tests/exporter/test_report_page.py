"""Tests that the page shows the content of the JSON report and escapes all markup in it."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.exporter.report_documents import PIXEL, published, refused
from tpuserve_exporter.reports.page import render_page
from tpuserve_exporter.reports.parity_section import Mark, draw_differences, show_parity
from tpuserve_exporter.reports.reporter import Reporter
from tpuserve_formats.markup import Markup, element


class Balance(HTMLParser):
    """A parser that fails at a closing tag that does not match the last open tag."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def text_of(page: str) -> str:
    """Return the approximate visible text of a page."""
    body = re.sub(r"<(script|style)>.*?</\1>", "", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", body))


@pytest.mark.parametrize("document", [published(), refused()], ids=["published", "refused"])
def test_a_page_is_well_formed_and_asks_for_nothing_from_elsewhere(document: dict[str, object]) -> None:
    page = render_page(document)
    assert Balance(page).open == []
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "url(" not in page
    assert "@import" not in page


def test_a_page_tells_what_was_exported_and_how_near_it_is() -> None:
    text = text_of(render_page(published()))
    for expected in (
        "published as version 3", "From tf2-ckpt ckpt-300 at step 300", "examples.digits.model:build",
        "matched by position", "5.10e-03", "99.21 %", "tolerance 0.02 + 0.02 * |expected|", "mixed_bfloat16",
        "other values (1)", "vocabulary ema", "40 moving averages, from ema", "matched (40)", "missing, allowed (1)",
        "of &#x27;ema&#x27;, not served (1)",
        "variables/variables.data-00000-of-00001",
        "tpuserve serve --model_name=an_image_classifier_with_quite_a_long_name "
        "--model_base_path=models/an_image_classifier_with_quite_a_long_name",
        "np.zeros((1, 8, 8, 1), np.float32)",
        "v5e:1x1, one device: 15.75 GiB", "does not fit: needs 20.00 of 15.75 GiB", "1.2 ms to 3.7 ms", "4.00 GiB",
        "4.2 G", "These fit: smaller batches: 8",
        "All programs together: fits, 5.00 GiB of 31.24 GiB (weights 3.00 GiB, two batches 1.00 GiB, temporaries 1.00",
        "6 such versions fit",
    ):  # fmt: skip
        assert expected in text, expected


@pytest.mark.parametrize("document", [published(), refused()], ids=["published", "refused"])
def test_a_page_shows_sample_inputs_with_their_answers(document: dict[str, object]) -> None:
    page = render_page(document)
    text = text_of(page)
    assert f'<img src="{PIXEL}" alt="IMG_20260101' in page
    for expected in (
        "a class whose name is long enough to need a line or two of its own 0.93", "class 0 0.07", "class 2 not finite",
        "correct expected tabby", "a good &lt;film&gt;", "wrong expected positive", "area float32[1, 1]: [[0.637]]",
        "row 0, made-up input · photo",
    ):  # fmt: skip
        assert expected in text, expected
    assert "Sample answers" not in text_of(render_page({**document, "samples": []}))


def test_a_page_of_a_failure_tells_why_and_which_variables() -> None:
    text = text_of(render_page(refused()))
    assert "not published" in text
    assert "does not fit the model that examples.digits.model:build builds" in text
    assert "CheckpointMismatch, exit code 2" in text
    assert "shape differs (1)" in text
    assert "Serving and calling" not in text


def test_short_inputs_have_a_request_to_paste_for_rest() -> None:
    document = published()
    document["manifest"]["signatures"]["serving_default"]["inputs"] = {
        "features": {"dtype": "float32", "shape": [None, 3]},
        "words": {"dtype": "string", "shape": [None, None]},
    }
    text = text_of(render_page(document))
    assert "&quot;features&quot;: [0.0, 0.0, 0.0], &quot;words&quot;: [&quot;&quot;, " in text
    assert ":predict" in text


def test_variables_of_a_model_taken_over_as_it_is_are_listed() -> None:
    variables = [{"name": f"dense_{number}/kernel", "model": "float32[3, 4]"} for number in range(2)]
    text = text_of(render_page(published() | {"restore": None, "variables": variables}))
    assert "dense_1/kernel float32[3, 4]" in text
    assert "Largest variables, of 96 B in total" in text


def test_what_was_there_already_is_not_called_published() -> None:
    text = text_of(render_page(published() | {"published": False}))
    assert "identical to version 3" in text
    assert "3 answers over gRPC, 3 over REST" in text


def test_a_dry_run_has_nothing_to_serve() -> None:
    text = text_of(render_page(published() | {"version": None, "path": None, "published": False}))
    assert "checked, not published" in text
    assert "Serving and calling" not in text


def test_names_are_text_wherever_they_come_from() -> None:
    document = published()
    nasty = '<script>alert("1")</script>'
    document["name"] = document["warnings"][0] = document["restore"]["variables"][0]["name"] = nasty
    page = render_page(document)
    assert nasty not in page
    assert page.count("&lt;script&gt;alert(&quot;1&quot;)") == 5


def test_elements_escape_text_and_attributes_and_take_markup_as_it_is() -> None:
    inner = element("b", "a < b")
    assert element("p", inner, " & ", Markup("<i>"), title='"', hidden=True, open=False) == (
        '<p title="&quot;" hidden><b>a &lt; b</b> &amp; <i></p>'
    )


def test_a_chart_places_larger_differences_higher_and_zero_lowest() -> None:
    marks = [
        Mark("1", "session", 0.0),
        Mark("2", "session", 1e-6),
        Mark("4", "session", 1e-3),
        Mark("8", "session", None),
    ]
    heights = [float(y) for y in re.findall(r'<circle cx="[\d.]+" cy="([\d.]+)"', draw_differences(marks, 1e-2))]
    assert heights == sorted(heights, reverse=True)
    assert len(set(heights)) == 4


def test_outputs_without_a_difference_have_words_instead_of_an_empty_chart() -> None:
    document = published()
    some = str(show_parity(document))
    assert some.count("<svg") == 1
    assert (
        "These outputs are bit-identical: embeddings_of_the_last_but_one_layer_of_the_encoder of serving_default."
        in some
    )
    for bucket in document["manifest"]["parity"]["signatures"]["serving_default"]["buckets"]:
        bucket["outputs"]["probabilities"]["max_abs_difference"] = 0.0
    none = str(show_parity(document))
    assert "<svg" not in none
    assert "All answers are bit-identical." in none


def test_report_files_are_written_in_the_form_of_their_names(tmp_path: Path) -> None:
    from tpuserve_exporter.errors import PublishFailed

    pages = [tmp_path / "report.json", tmp_path / "report.HTML"]
    assert (
        Reporter("digits", as_json=False, reports=pages).fail(PublishFailed("version 3 of digits already exists")) == 5
    )
    assert '"error": "version 3 of digits already exists"' in pages[0].read_text()
    assert pages[1].read_text().startswith("<!doctype html>")
    assert "version 3 of digits already exists" in pages[1].read_text()
