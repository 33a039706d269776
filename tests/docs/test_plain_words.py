"""Docstrings, comments and documents stay in plain technical English: few odd openings, few odd phrases."""

from pathlib import Path

import pytest

from tests.docs.prose import (
    ROOT,
    SOURCES,
    Sentence,
    markdown_texts,
    measure,
    python_texts,
    read_sentences,
    split_sentences,
    worst_files,
)

# One process reads the sentences for all tests.
pytestmark = pytest.mark.xdist_group("prose")

MOST_OPENINGS_PERCENT = 1.5
MOST_ODD_PER_THOUSAND = 0.4


@pytest.fixture(scope="module")
def sentences() -> list[Sentence]:
    return list(read_sentences(ROOT / source for source in SOURCES))


def test_sentences_open_with_a_subject_or_a_verb(sentences: list[Sentence]) -> None:
    figures = measure(sentences)
    assert figures.sentences > 10_000
    percent = figures.openings_percent
    assert percent <= MOST_OPENINGS_PERCENT, report(sentences)


def test_sentences_use_the_words_of_the_field(sentences: list[Sentence]) -> None:
    per_thousand = measure(sentences).odd_per_thousand
    assert per_thousand <= MOST_ODD_PER_THOUSAND, report(sentences)


def report(sentences: list[Sentence]) -> str:
    worst = sorted(sentences, key=lambda sentence: sentence.faults, reverse=True)[:10]
    files = [f"{number} faults in {path}" for number, path in worst_files(sentences, 10)]
    lines = [f"{sentence.path}:{sentence.line}: {sentence.text}" for sentence in worst]
    return "\n".join(["", str(measure(sentences)), *files, *lines])


def faults(text: str) -> int:
    return Sentence(Path("page.md"), 1, text).faults


@pytest.mark.parametrize(
    "text",
    [
        "What began late is reported.",
        "Of several replicas the first is taken.",
        "As the server starts, it reads the file.",
        "`Where` is code, but this opens with it.",
        "The client is told the reason.",
        "The server stops, but for open requests.",
    ],
)
def test_a_riddle_is_counted(text: str) -> None:
    assert faults(text) == 1


def test_plain_sentences_are_not_counted() -> None:
    assert faults("The server refuses the request and logs a warning.") == 0
    assert faults("Whether the version is available.") == 0


def test_sentences_come_from_docstrings_and_comments() -> None:
    source = '"""Module. Second sentence."""\n# A comment that\n# has two lines.\nX = 1  # noqa: E501\n# Another one.\n'
    assert [text for _, text in python_texts(source)] == [
        "Module. Second sentence.",
        "A comment that has two lines.",
        "Another one.",
    ]


def test_sentences_come_from_paragraphs_and_cells() -> None:
    source = "# A heading\n\nFirst one. Second one.\n\n```\nWhat is code\n```\n\n| a cell | [the link](x.md) |\n"
    texts = [sentence for _, text in markdown_texts(source) for sentence in split_sentences(text)]
    assert texts == ["A heading", "First one.", "Second one.", "a cell", "the link"]
