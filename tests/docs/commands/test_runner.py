"""The runner finds what a reader would stumble over: a command that fails, an output that differs, a missing file."""

from pathlib import Path

import pytest

from tests.docs.commands.page import read_page
from tests.docs.commands.runner import Runner
from tests.docs.commands.shell import CommandFailed


def run_page(folder: Path, text: str) -> Runner:
    (folder / "page.md").write_text(text)
    directory = folder / "work"
    directory.mkdir()
    runner = Runner(read_page(folder / "page.md", folder), directory)
    runner.run()
    return runner


def test_blocks_run_in_order_and_keep_their_state(tmp_path: Path) -> None:
    runner = run_page(
        tmp_path,
        """
Save this as `double.py`:

```python
import sys
print(2 * int(sys.argv[1]))
```

```bash
mkdir inner && mv double.py inner
cd inner
value=21
```

```bash
python3 double.py \\
  "$value"
```

```
42
```

```python
import asyncio
await asyncio.sleep(0)
answer = 6 * 7
```

```python
print("answer", answer)
```

```
answer 42
```
""",
    )
    assert runner.ran == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```bash\ntrue\nfalse\n```\n", "page.md:2: `false`: exit code 1, expected 0"),
        ("```bash\ntrue\n```\n\n```\nready\n```\n", "the page shows lines that were not printed:\nready"),
        ("```console\n$ echo ready\nsteady\n```\n", "not printed:\nsteady"),
        ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
        ("```python\nraise SystemExit(3)\n```\n", "exit code 1"),
        ("<!-- commands: until listening -->\n\n```bash\necho other\n```\n", "did not print 'listening':\nother"),
        ("<!-- commands: exits 3 -->\n\n```bash\nexit 3\n```\n", "the session ended"),
    ],
)
def test_a_fault_of_the_page_is_found_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(CommandFailed) as found:
        run_page(tmp_path, text)
    assert message in str(found.value)


def test_numbers_may_differ_and_dots_stand_for_anything(tmp_path: Path) -> None:
    printed = "took 3.5 s, more, at 10:20: 0, 1,234 and [0.1,0.25,3e-7]"
    shown = "took 12 s, … at 09:59: 5.9e-08, 7 and [0.5,…]"
    run_page(tmp_path, f"```bash\necho '{printed}'\n```\n\n```\n{shown}\n```\n")


def test_an_exit_code_of_the_last_command_can_be_expected(tmp_path: Path) -> None:
    run_page(tmp_path, "<!-- commands: exits 1 -->\n\n```bash\ntrue\nfalse\n```\n")


def test_what_keeps_running_ends_with_the_page(tmp_path: Path) -> None:
    command = "bash -c 'echo started; exec sleep 1000'"
    text = f"<!-- commands: until started -->\n\n```bash\n{command}\n```\n\n```bash\ntrue\n```\n"
    assert run_page(tmp_path, text).ran == 2


def test_an_unknown_directive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"page\.md: unknown directive: <!-- commands: skip -->"):
        run_page(tmp_path, "<!-- commands: skip -->\n\n```bash\ntrue\n```\n")


def test_blocks_that_are_not_run_name_the_reason(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("<!-- commands: not run: needs a TPU -->\n\n```bash\nfalse\n```\n")
    (block,) = read_page(tmp_path / "page.md", tmp_path).blocks
    assert block.not_run == "needs a TPU"
    assert not block.runs
