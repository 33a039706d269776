"""`python -m tests.docs.commands.runner PAGE DIRECTORY`: runs a page's blocks with the programs on PATH.

The caller has installed what the page installs. Ports are those of the page, so it runs in a network namespace.
"""

import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.docs.commands.page import Block, Page, commands_of, is_install, outputs_of, read_page
from tests.docs.commands.shell import CommandFailed, Session, open_python, open_shell

ROOT = Path(__file__).parents[3]
_LIMIT_S = 600.0
_READY = "tpuserve is ready"
_LOADS = ("tpuserve loadtest", "tpuserve rollout")
# A load test has no result: a page's load is too short for this machine, or other work slows the load generator.
_NO_RESULT = (97, 98)
_SERVER = re.compile(r"(?:\w+=\S+ )*(?:tpuserve serve|tpuserve-serve|tensorflow_model_server)\b")
_NO_SERVER = re.compile(r"--(?:help|check_config|version)|\s-h\b|&\s*$")
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?", re.IGNORECASE)
_LINE = re.compile("[─━]+")
_STYLE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass
class Runner:
    """Runs the blocks of a page in a directory. `ran` counts the commands and pieces of Python."""

    page: Page
    directory: Path
    ran: int = 0
    _shell: Session | None = None
    _python: Session | None = None
    _started: dict[str, str] = field(default_factory=dict)  # process IDs of what keeps running, by the command

    @property
    def _scratch(self) -> Path:
        """Directory of code and logs, beside that of the page."""
        return self.directory.with_name(f"{self.directory.name}.code")

    def run(self) -> None:
        """Run all blocks. Raises CommandFailed with the place in the page."""
        self._scratch.mkdir(exist_ok=True)
        try:
            for block in self.page.blocks:
                if block.runs:
                    try:
                        self._run_block(block)
                    except CommandFailed as error:
                        raise CommandFailed(f"{self.page.name}:{block.line}: {error}") from None
            self._stop_started()
            (self._scratch / "directory").write_text(str(self._here()), encoding="utf-8")
        finally:
            for session in (self._shell, self._python):
                if session is not None:
                    session.close()

    def _run_block(self, block: Block) -> None:
        if block.serve:
            model, *flags = block.serve
            self._serve(f"tpuserve serve --model_name={model} --model_base_path=models/{model} {' '.join(flags)}")
        if block.saved_as:
            file = self._here() / block.saved_as
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self._local(block.text), encoding="utf-8")
        elif block.language == "python":
            self._python = self._python or open_python(self._here(), self._scratch)
            status, printed = self._python.run(self._local(block.text), _LIMIT_S)
            self.ran += 1
            if status != 0:
                raise CommandFailed(f"exit code {status}:\n{printed}")
            self._compare(block, block.output, printed)
        else:
            self._run_commands(block)

    def _run_commands(self, block: Block) -> None:
        printed = ""
        *first, last = commands_of(block)
        for command in (*first, last):
            self.ran += 1
            if is_install(command):
                continue
            expected = block.exits if command is last else 0
            if command is last and block.until:
                printed += self._start(self._local(command), block.until)
            elif _SERVER.match(command) and not _NO_SERVER.search(command) and not expected:
                printed += self._serve(self._local(command))
            else:
                status, output = self._in_shell(self._local(command))
                printed += output
                is_open = status in _NO_RESULT and command.startswith(_LOADS)
                if status != expected and not is_open:
                    raise CommandFailed(f"`{command}`: exit code {status}, expected {expected}:\n{output}")
        self._compare(block, outputs_of(block), printed)

    def _in_shell(self, command: str) -> tuple[int, str]:
        self._shell = self._shell or open_shell(self.directory, self._scratch)
        return self._shell.run(command, _LIMIT_S)

    def _here(self) -> Path:
        """Return the working directory of the shell."""
        return Path(self._in_shell("pwd")[1].strip())

    def _serve(self, command: str) -> str:
        """Start a server instead of the one before, and wait until it is ready."""
        self._stop_started()
        return self._start(command, _READY)

    def _start(self, command: str, until: str) -> str:
        """Start a command in the background, wait until it has printed `until`, and return its output."""
        log = self._scratch / f"started-{self.ran}.log"
        log.touch()
        _, printed = self._in_shell(f"{command.rstrip()} >{log} 2>&1 &\necho $!")
        process = self._started[command] = printed.strip()
        end = time.monotonic() + _LIMIT_S
        while until not in log.read_text(encoding="utf-8", errors="replace"):
            runs, _ = self._in_shell(f"kill -0 {process} 2>/dev/null")
            if runs != 0 or time.monotonic() > end:
                raise CommandFailed(f"`{command}` did not print {until!r}:\n{log.read_text(encoding='utf-8')}")
            time.sleep(0.1)
        return log.read_text(encoding="utf-8", errors="replace")

    def _stop_started(self) -> None:
        """Stop what keeps running, as Ctrl-C of a reader does. Raises CommandFailed for a bad exit code."""
        while self._started:
            command, process = self._started.popitem()
            status, _ = self._in_shell(f"kill -TERM {process} && wait {process}")
            if status not in (0, 143):  # 143: the default action of SIGTERM
                raise CommandFailed(f"`{command}` ended with exit code {status} after SIGTERM")

    def _local(self, text: str) -> str:
        """Replace /models, where pages place models, by the directory of the page."""
        return re.sub(r"(?<![\w.])/models\b", f"{self.directory}/models", text)

    def _compare(self, block: Block, shown: str, printed: str) -> None:
        if not block.output_varies and (missing := list(_missing(self._local(shown), printed))):
            lines = "\n".join(missing)
            raise CommandFailed(f"the page shows lines that were not printed:\n{lines}\nPrinted:\n{printed}")


def _missing(shown: str, printed: str) -> Iterator[str]:
    """Yield the lines of a page that a command did not print. Numbers may differ, and `…` stands for anything."""
    found = _plain(printed)
    for line in shown.splitlines():
        if not all(_plain(part) in found for part in re.split(r"…|\.\.\.", line)):
            yield line


def _plain(text: str) -> str:
    """Return a text without styles, numbers, and the widths of spaces and of the lines of tables."""
    return " ".join(_LINE.sub("-", _NUMBER.sub("#", _STYLE.sub("", text))).split())


def main(name: str, directory: str) -> int:
    """Run a page and print the number of its commands. Returns 1 if one failed."""
    runner = Runner(read_page(ROOT / name, ROOT), Path(directory))
    try:
        runner.run()
    except CommandFailed as error:
        print(error)
        return 1
    finally:
        print(f"{name}: ran {runner.ran} commands")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
