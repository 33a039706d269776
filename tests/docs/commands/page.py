"""Blocks of a Markdown page, in order, with the directives of its comments."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

_DIRECTIVE = re.compile(r"<!-- commands: (.*?) -->", re.DOTALL)
# "Save this as `train.py`:", "Write the configuration of the model to `models.config`."
_SAVED = re.compile(r"\b(?:[Ss]ave|[Ww]rite)\b[^`]*`([\w./-]+\.\w+)`")
_RUN = ("bash", "console", "python")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `line` is that of its first content line, from 1."""

    language: str
    text: str
    line: int
    saved_as: str = ""
    output: str = ""
    not_run: str = ""
    exits: int = 0
    until: str = ""
    serve: tuple[str, ...] = ()
    output_varies: bool = False

    @property
    def runs(self) -> bool:
        """Whether the tests run or save the block."""
        return not self.not_run and bool(self.saved_as or self.language in _RUN)


@dataclass(frozen=True, slots=True)
class Page:
    """The blocks of a page, the pages whose files it begins with, and why it is not run, or ""."""

    name: str
    blocks: tuple[Block, ...]
    after: tuple[str, ...] = ()
    not_run: str = ""
    prose_installs: tuple[str, ...] = ()  # `pip install` commands within sentences

    @property
    def installs(self) -> tuple[str, ...]:
        """The `pip install` commands that a reader of the page types: those of blocks that run, and of sentences."""
        commands = (command for block in self.blocks if block.runs for command in commands_of(block))
        return (*(command for command in commands if is_install(command)), *self.prose_installs)


def read_page(path: Path, root: Path) -> Page:
    """Read a page. Raises ValueError for an unknown directive."""
    name = str(path.relative_to(root))
    blocks: list[Block] = []
    after: list[str] = []
    prose: list[str] = []
    page_not_run = ""
    serve: tuple[str, ...] = ()
    pending = Block("", "", 0)
    caption = ""
    follows = False  # whether nothing stands between the last block and this token
    for token in MarkdownIt().parse(path.read_text(encoding="utf-8")):
        if token.type == "html_block":
            for directive in _DIRECTIVE.findall(token.content):
                words = " ".join(directive.split())
                if words.startswith("after "):
                    after.append(words.removeprefix("after "))
                elif words.startswith("serve "):
                    serve = tuple(words.split()[1:])
                elif words.startswith("page not run: "):
                    page_not_run = words.removeprefix("page not run: ")
                else:
                    pending = _directed(pending, words, name)
        elif token.type == "inline":
            caption, follows = token.content, False
            prose += (child.content for child in token.children or () if child.type == "code_inline")
        elif token.type == "fence":
            block = _read_fence(token, caption, pending)
            if block.runs and serve:
                block, serve = replace(block, serve=serve), ()
            if follows and not block.language and not block.saved_as:
                blocks[-1] = replace(blocks[-1], output=block.text)
                continue
            blocks.append(block)
            pending, caption = Block("", "", 0), ""
            follows = block.language in _RUN
    installs = (text for text in prose if text.startswith("pip install ") and "…" not in text)
    return Page(name, tuple(blocks), tuple(after), page_not_run, tuple(dict.fromkeys(installs)))


def commands_of(block: Block) -> tuple[str, ...]:
    """Return the commands of a shell block: what stands after `$`, if a line has it, or each complete command.

    Other blocks have none.
    """
    if block.language not in ("bash", "console"):
        return ()
    lines = block.text.splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line.startswith(("$ ", "> "))]
    return tuple(_complete(lines))


def outputs_of(block: Block) -> str:
    """Return the output that the page shows for a shell block."""
    lines = block.text.splitlines()
    if any(line.startswith("$ ") for line in lines):
        return "\n".join(line for line in lines if not line.startswith(("$ ", "> ")))
    return block.output


def is_install(command: str) -> bool:
    """Return whether a command installs packages, for which it needs the network."""
    return re.match(r"(python3? -m )?pip install\b|npm (install|ci)\b|make install\b", command) is not None


def _read_fence(token: Token, caption: str, directed: Block) -> Block:
    language = token.info.split()[0] if token.info.strip() else ""
    saved = _SAVED.search(caption)
    start = token.map[0] if token.map else 0
    saved_as = saved[1] if saved and language not in ("bash", "console") else ""
    return replace(directed, language=language, text=token.content, line=start + 2, saved_as=saved_as)


def _directed(block: Block, words: str, page: str) -> Block:
    key, _, value = words.partition(" ")
    if words.startswith("not run: "):
        return replace(block, not_run=words.removeprefix("not run: "))
    if key == "exits" and value.isdigit():
        return replace(block, exits=int(value))
    if key == "until" and value:
        return replace(block, until=value)
    if words == "output varies":
        return replace(block, output_varies=True)
    raise ValueError(f"{page}: unknown directive: <!-- commands: {words} -->")


def _complete(lines: list[str]) -> Iterator[str]:
    """Yield commands: lines joined at backslashes, here-documents, quotes, and blocks of the shell."""
    command: list[str] = []
    for line in lines:
        if not command and (not line.strip() or line.lstrip().startswith("#")):
            continue
        command.append(line)
        if not _is_open("\n".join(command)):
            yield "\n".join(command)
            command = []
    if command:
        yield "\n".join(command)


def _is_open(text: str) -> bool:
    """Return whether a shell command continues on the next line, as bash reads it."""
    checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    return text.endswith("\\") or re.search(r"\bEOF\b|end.of.file", checked.stderr) is not None
