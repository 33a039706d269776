"""Write the example notebook's outputs into the notebook, and render them as images for the docs.

`python -m tests.examples.notebook_pictures` does both. Run it on an idle machine, because the notebook plots latencies.
"""

import html
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

import nbformat
from markdown_it import MarkdownIt
from nbformat import NotebookNode
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from tests.support.browser import open_browser
from tests.support.notebook_kernel import execute

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples" / "notebooks" / "train_export_serve.ipynb"
PICTURES = ROOT / "docs" / "images"
WIDTH = 860
# The cells of each image, and whether it shows their code.
PARTS = {"notebook-export": (("export",), True), "notebook-answers": (("answers", "load"), False)}

# The style of cells and tables in JupyterLab.
_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 0; padding: 8px 16px; color: #1f2328; }
pre { font-size: 12px; margin: 6px 0; white-space: pre-wrap; }
.input { background: #f6f8fa; border: 1px solid #d1d9e0; border-radius: 4px; padding: 2px 10px; margin: 10px 0 6px; }
.output { padding-left: 10px; }
.output td, .output th { padding: 2px 8px; text-align: left; }
img { max-width: 100%; }
"""


def render(cells: Collection[NotebookNode], *, code: bool = True) -> str:
    """Return an HTML page of these cells."""
    body = "\n".join(part for cell in cells for part in _parts(cell, code))
    style = _STYLE + HtmlFormatter().get_style_defs(".input")
    return f'<!doctype html><meta charset="utf-8"><style>{style}</style>{body}'


def without_remarks(notebook: NotebookNode) -> NotebookNode:
    """Remove the libraries' messages on standard error, which name this machine's devices and directories."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            cell.metadata = {}
    # The kernel's versions change with each run and are of no use to readers.
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def take_pictures(notebook: NotebookNode, folder: Path) -> None:
    """Write PNG files to `folder`: those in PARTS, and `notebook.png` with the whole notebook."""
    cells = {cell.id: cell for cell in notebook.cells}
    pages = {name: render([cells[one] for one in ids], code=code) for name, (ids, code) in PARTS.items()}
    # The browser's child processes may write to the profile for a moment after the browser ends.
    temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with temporary as scratch, open_browser(Path(scratch, "profile")) as browser:
        for name, page in {**pages, "notebook": render(notebook.cells)}.items():
            Path(scratch, f"{name}.html").write_text(page)
            browser.open(Path(scratch, f"{name}.html"), WIDTH, "light")
            end = browser.evaluate("Math.ceil(document.body.getBoundingClientRect().bottom)")
            browser.take_picture(folder / f"{name}.png", height=end)


def _parts(cell: NotebookNode, code: bool) -> Iterator[str]:
    if cell.cell_type == "markdown":
        yield MarkdownIt().render(cell.source)
        return
    if code:
        yield f'<div class="input"><pre>{highlight(cell.source, PythonLexer(), HtmlFormatter(nowrap=True))}</pre></div>'
    yield from (f'<div class="output">{_output(output)}</div>' for output in cell.outputs)


def _output(output: NotebookNode) -> str:
    if output.output_type == "stream":
        return f"<pre>{html.escape(output.text)}</pre>"
    if "image/png" in output.data:
        return f'<img src="data:image/png;base64,{output.data["image/png"]}">'
    return str(output.data.get("text/html") or f"<pre>{html.escape(output.data['text/plain'])}</pre>")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        notebook = without_remarks(execute(nbformat.read(NOTEBOOK, as_version=4), Path(folder)))
        nbformat.write(notebook, NOTEBOOK)
        take_pictures(notebook, Path(folder))
        for name in PARTS:
            Path(folder, f"{name}.png").replace(PICTURES / f"{name}.png")
        if sys.argv[1:]:
            Path(folder, "notebook.png").replace(sys.argv[1])


if __name__ == "__main__":
    main()
