"""Sentences of docstrings, comments and documents, and the figures of their style.

    python -m tests.docs.prose             # figures of the repository, and the worst files
    python -m tests.docs.prose PATH...     # each sentence below these paths that breaks a rule

Two kinds of fault count: sentences that open with a clause instead of a subject or a verb ("What", "Of", "As"), and
phrases that the field does not use ("nobody", "is told", "but for"). In httpx, uvicorn, starlette, gRPC and JAX, 0 to
0.6 % of the sentences open so, and 0 to 0.6 of a thousand words belong to such a phrase.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    *("server", "exporter", "clients", "formats", "loadtests", "benchmarks", "examples", "deploy", "docs", "tests"),
    *("README.md", "CHANGELOG.md"),
)
_SKIPPED = frozenset(("__pycache__", "node_modules", "build", "dist", "_proto"))

_OPENING = re.compile(
    r"[\"(`*_]*(What|Who|Whoever|Whose|Whom|Whatever|Which|Wherever|Of|As|Where|That|So much|So many|Nobody)\b"
)
_ODD = re.compile(
    r"\b(nobody|somebody|whoever|whomever|who comes?|those who|what is there|what there is|told|tells?|telling"
    r"|said|says?|saying|but for|left out|leaves? out|leaving out|so[- ]man(?:y|ieth)|asked for|asks? for|beside"
    r"|of (?:its|their|his) own|became of|in the place of|(?:none|nothing|empty) where|anew|goes by"
    r"|take[sn]? (?:its|their) leave)\b",
    re.IGNORECASE,
)
_DIRECTIVE = re.compile(r"#!|#\s*(noqa|type:|pragma|mypy|ruff|fmt)")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence and its place."""

    path: Path
    line: int
    text: str

    @property
    def opens_with_a_clause(self) -> bool:
        """Whether the sentence lacks a subject or a verb at its start."""
        return _OPENING.match(self.text) is not None

    @property
    def odd_phrases(self) -> list[str]:
        """The phrases that have a better word."""
        return [phrase.lower() for phrase in _ODD.findall(self.text)]

    @property
    def faults(self) -> int:
        """The number of faults in the sentence."""
        return self.opens_with_a_clause + len(self.odd_phrases)


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts over many sentences."""

    sentences: int
    openings: int
    words: int
    odd_phrases: int

    @property
    def openings_percent(self) -> float:
        """Sentences that open with a clause, in percent."""
        return 100 * self.openings / max(self.sentences, 1)

    @property
    def odd_per_thousand(self) -> float:
        """Odd phrases in a thousand words."""
        return 1000 * self.odd_phrases / max(self.words, 1)

    def __str__(self) -> str:
        """Return both figures with their counts."""
        return (
            f"openings: {self.openings} of {self.sentences} sentences, {self.openings_percent:.2f} %; "
            f"odd phrases: {self.odd_phrases} of {self.words} words, {self.odd_per_thousand:.2f} in a thousand"
        )


def measure(sentences: Iterable[Sentence]) -> Figures:
    """Count the faults of the sentences."""
    found = list(sentences)
    return Figures(
        sentences=len(found),
        openings=sum(sentence.opens_with_a_clause for sentence in found),
        words=sum(len(sentence.text.split()) for sentence in found),
        odd_phrases=sum(len(sentence.odd_phrases) for sentence in found),
    )


def read_sentences(paths: Iterable[Path]) -> Iterator[Sentence]:
    """Yield the sentences of the Python and Markdown files at and below the paths."""
    for path in paths:
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            yield from _read_file(file)


def python_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the docstrings and blocks of comments, each with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring is not None:
                yield node.body[0].lineno, docstring
    yield from _comment_blocks(source)


def markdown_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs and table cells outside code blocks, each with its line."""
    text = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), source, flags=re.DOTALL)
    line = 1
    for paragraph in re.split(r"(\n\s*\n)", text):
        if paragraph.lstrip().startswith("|"):
            yield from ((line, cell.strip()) for cell in re.split(r"[|\n]", paragraph))
        elif paragraph.strip():
            yield line, paragraph
        line += paragraph.count("\n")


def split_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of two words or more in a text. List items and headings end a sentence."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\n\s*[-*] ", "\n\n", text)
    text = re.sub(r"^#+ ", "", text, flags=re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z`\"(])", " ".join(paragraph.split())):
            if len(sentence.split()) > 1:
                yield sentence


def _read_file(file: Path) -> Iterator[Sentence]:
    texts = {".py": python_texts, ".md": markdown_texts}.get(file.suffix)
    if texts is None or any(part in _SKIPPED or part.startswith(".") for part in file.relative_to(ROOT).parts):
        return
    for line, text in texts(file.read_text(encoding="utf-8")):
        for sentence in split_sentences(text):
            yield Sentence(file.relative_to(ROOT), line, sentence)


def _comment_blocks(source: str) -> Iterator[tuple[int, str]]:
    comments = [
        token
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and not _DIRECTIVE.match(token.string)
    ]
    block: list[tokenize.TokenInfo] = []
    for token in comments:
        if block and token.start[0] != block[-1].start[0] + 1:
            yield _join(block)
            block = []
        block.append(token)
    if block:
        yield _join(block)


def _join(block: list[tokenize.TokenInfo]) -> tuple[int, str]:
    return block[0].start[0], " ".join(token.string.lstrip("# ") for token in block)


def _print_faults(paths: list[Path]) -> None:
    sentences = list(read_sentences(paths))
    for sentence in sentences:
        if sentence.faults:
            print(f"{sentence.path}:{sentence.line}: {sentence.text}")
    print(measure(sentences))


def worst_files(sentences: Iterable[Sentence], count: int) -> list[tuple[int, Path]]:
    """Return the files with the most faults and their numbers."""
    faults: dict[Path, int] = {}
    for sentence in sentences:
        faults[sentence.path] = faults.get(sentence.path, 0) + sentence.faults
    return sorted(((number, path) for path, number in faults.items() if number), reverse=True)[:count]


def main() -> None:
    """Print the faults below the paths of the command line, or the figures of the repository."""
    if len(sys.argv) > 1:
        _print_faults([Path(argument).resolve() for argument in sys.argv[1:]])
        return
    sentences = list(read_sentences(ROOT / source for source in SOURCES))
    print(measure(sentences))
    for number, path in worst_files(sentences, 20):
        print(f"{number:5d}  {path}")


if __name__ == "__main__":
    main()
