"""`python -m tests.docs.flag_table`: rewrite the table of flags in docs/reference/server-flags.md."""

import re
from collections.abc import Iterator
from itertools import groupby

from tests.deploy.dockerfile import ROOT
from tests.support.upstream_flags import UPSTREAM_FLAGS
from tpuserve_server.startup.settings import Flag, flags

PAGE = ROOT / "docs/reference/server-flags.md"
BEGIN = "<!-- The declarations of the flags make this table: python -m tests.docs.flag_table -->\n"
END = "<!-- End of the table of flags -->\n"

_NAMES = {flag.name for flag in flags()}
# A flag of the command only, not a setting of the server.
_CHECK_CONFIG = (
    "| `--check_config` | | check the configuration and serve nothing; `=json` for scripts "
    "([more](../how-to/serve/configuration.md#checking-a-configuration)) |\n"
)


def flag_table() -> str:
    """Return a row for each flag, under the heading of its section."""
    return "".join(("| flag | default | meaning |\n", "|---|---|---|\n", *_rows(), _CHECK_CONFIG))


def written_table(page: str) -> str:
    """Return the page's table."""
    return page.partition(BEGIN)[2].partition(END)[0]


def write_table(page: str) -> str:
    """Return the page with a new table."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}{flag_table()}{END}{rest.partition(END)[2]}"


def _rows() -> Iterator[str]:
    for section, members in groupby(flags(), key=lambda flag: flag.setting.section):
        yield f"| **{section}** | | |\n"
        yield from map(_row, members)


def _row(flag: Flag) -> str:
    star = " ★" if flag.name in UPSTREAM_FLAGS else ""
    cells = (f"`--{flag.name}`{star}", _default(flag), _meaning(flag))
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|\n"


def _default(flag: Flag) -> str:
    shown = flag.setting.page_default or flag.setting.shown_default
    if shown is not None:
        return shown if "`" in shown else _name_flags(shown)
    match flag.default:
        case bool():
            return str(flag.default).lower()
        case float():
            return f"{flag.default:g}"
        case tuple():
            return ",".join(map(str, flag.default))
        case default:
            return "" if default is None else str(default)


def _meaning(flag: Flag) -> str:
    """Return the text of the table cell: a phrase without a capital letter and a full stop."""
    text = flag.setting.page or _name_flags(_phrase(flag.setting.help))
    return text + "".join(f"; also `{variable}`" for variable in flag.setting.variables)


def _phrase(text: str) -> str:
    first = text.split(" ")[0]
    decapitalized = text[0].lower() + text[1:] if first[1:] == first[1:].lower() else text
    return decapitalized.removesuffix(".")


def _name_flags(text: str) -> str:
    """Format the names of flags in the text as command-line flags."""
    return re.sub(r"\b[a-z]+(_[a-z]+)+\b", lambda word: f"`--{word[0]}`" if word[0] in _NAMES else word[0], text)


if __name__ == "__main__":
    PAGE.write_text(write_table(PAGE.read_text()))
