"""`python -m tests.docs.install_blocks`: write the first command of each page that begins with an installation.

The block stands between `<!-- install: tpuserve scikit-learn -->` and `<!-- end of install -->`. The comment has the
requirements of pip that the page needs, first that of tpuserve. docs/install.toml decides where they come from.
"""

import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from tests.deploy.dockerfile import ROOT
from tests.docs.test_links import markdown_files

SWITCH = ROOT / "docs/install.toml"
INSTALL_PAGE = Path("docs/how-to/install.md")
_BLOCK = re.compile(r"<!-- install: (.*?) -->\n.*?<!-- end of install -->\n", re.DOTALL)
_FROM_CHECKOUT = """\
Type the commands in the directory of this repository, on Linux with `make` and Python 3.11, 3.12 or 3.13. On Debian and
Ubuntu, `apt-get install make python3-venv` installs both.

```bash
{commands}
```

"""
_FROM_INDEX = """\
You need Linux and Python 3.11, 3.12 or 3.13. On Debian and Ubuntu, `apt-get install python3-venv` installs it.

```bash
{commands}
```

"""
_PIP_WORKS = "In this environment, every `pip install` command of the documentation works as printed.\n"


def requirements(page: str) -> list[str]:
    """Return the requirements of each block of the page."""
    return _BLOCK.findall(page)


def write_blocks(path: Path, page: str, *, on_index: bool) -> str:
    """Return the page at `path`, relative to the root, with each block written."""
    link = os.path.relpath(INSTALL_PAGE, path.parent)
    more = "" if path == INSTALL_PAGE else f"[Install]({link}) lists smaller installations and extras.\n"

    def block(found: re.Match[str]) -> str:
        first, *others = found[1].split()
        text = _from_index(first, others) if on_index else _from_checkout(first, others)
        return f"<!-- install: {found[1]} -->\n{text}{more}<!-- end of install -->\n"

    return _BLOCK.sub(block, page)


def _from_checkout(first: str, others: Sequence[str]) -> str:
    packages = "" if first == "tpuserve" else f" PACKAGES={_quoted(first)}"
    pip = [f"pip install {' '.join(map(_quoted, others))}"] if others else []
    commands = (f"make install{packages}", "source ~/tpuserve/bin/activate", *pip)
    return _FROM_CHECKOUT.format(commands="\n".join(commands)) + _PIP_WORKS


def _from_index(first: str, others: Sequence[str]) -> str:
    pip = f"pip install {' '.join(map(_quoted, (first, *others)))}"
    commands = ("python3 -m venv ~/tpuserve", "source ~/tpuserve/bin/activate", pip)
    return _FROM_INDEX.format(commands="\n".join(commands))


def _quoted(requirement: str) -> str:
    return f"'{requirement}'" if "[" in requirement else requirement


def is_on_index() -> bool:
    """Return the value of the switch."""
    return bool(tomllib.loads(SWITCH.read_text(encoding="utf-8"))["on_index"])


if __name__ == "__main__":
    for page in markdown_files():
        text = (ROOT / page).read_text(encoding="utf-8")
        (ROOT / page).write_text(write_blocks(page, text, on_index=is_on_index()), encoding="utf-8")
