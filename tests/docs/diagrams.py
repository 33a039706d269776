"""`python -m tests.docs.diagrams`: draw the Mermaid diagrams of the site, and delete unused drawings.

Needs chromium, chromium-driver and npm, and loads Mermaid with npm. docs/sphinx/diagrams.py places the drawings.
"""

import re
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from docs.sphinx.diagrams import FOLDER, find_drawing
from tests.deploy.dockerfile import ROOT
from tests.docs.test_links import markdown_files
from tests.support.web_driver import WebDriver, drive_browser

MERMAID: Final = "mermaid@12.3.0"
_BLOCK: Final = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_TEXT: Final = "var(--color-foreground-primary)"
_LINE: Final = "var(--color-foreground-muted)"
_BOX: Final = "var(--color-background-secondary)"
# The colors of the site's theme, light and dark.
_COLORS: Final = f"""
text, tspan, .label, .nodeLabel, .edgeLabel {{
  fill: {_TEXT} !important; color: {_TEXT} !important; stroke: none !important }}
.node rect, .node path, .node circle, .node polygon, .cluster rect, rect.actor, rect.note {{
  fill: {_BOX} !important; stroke: {_LINE} !important }}
.flowchart-link, .messageLine0, .messageLine1, .actor-line, line {{ stroke: {_LINE} !important }}
marker path, marker circle, .arrowheadPath {{ fill: {_LINE} !important; stroke: {_LINE} !important }}
.edgeLabel rect, .labelBkg {{ fill: var(--color-background-primary) !important; opacity: 1 !important }}
"""
_START: Final = """
mermaid.initialize({
  startOnLoad: false, look: "classic", theme: "base", themeCSS: arguments[0],
  htmlLabels: false, markdownAutoWrap: false,
  flowchart: {htmlLabels: false, useMaxWidth: false, nodeSpacing: 30, rankSpacing: 30, wrappingWidth: 250},
  fontFamily: "system-ui, sans-serif", fontSize: 15, deterministicIds: true,
  sequence: {mirrorActors: false, useMaxWidth: false}});
"""
_DRAW: Final = """
const [name, source] = arguments;
window.drawn = null;
mermaid.render(name, source).then(({svg}) => { window.drawn = svg; }, error => { window.drawn = String(error); });
"""


def find_sources() -> set[str]:
    """Return the sources of the diagrams in pages of the site."""
    pages = [path for path in markdown_files() if path.parts[0] == "docs"]
    return {source for page in pages for source in _BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))}


def main() -> None:
    """Draw each diagram that has no drawing, and delete drawings without a diagram."""
    FOLDER.mkdir(exist_ok=True)
    drawings = {find_drawing(source): source for source in find_sources()}
    for unused in set(FOLDER.iterdir()) - drawings.keys():
        unused.unlink()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:  # the browser writes files until it has ended
        folder = Path(name)
        subprocess.run(["npm", "pack", "--silent", MERMAID], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        with tarfile.open(next(folder.glob("*.tgz"))) as package:
            package.extract("package/dist/mermaid.min.js", folder, filter="data")
        script = folder / "package/dist/mermaid.min.js"
        page = folder / "page.html"
        page.write_text(f"<!doctype html><meta charset=utf-8><script src='{script}'></script><body>", encoding="utf-8")
        with drive_browser(folder / "profile") as browser:
            browser.open(page.as_uri())
            browser.evaluate(_START, _COLORS)
            for path, source in sorted(drawings.items()):
                if not path.exists():
                    path.write_text(_draw(browser, path.stem, source), encoding="utf-8")


def _draw(browser: WebDriver, name: str, source: str) -> str:
    browser.evaluate(_DRAW, f"diagram-{name}", source)
    drawn: str = browser.wait_for("window.drawn")
    assert drawn.startswith("<svg"), f"{drawn}\n{source}"
    return f"{drawn}\n"


if __name__ == "__main__":
    main()
