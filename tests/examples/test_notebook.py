"""Tests that the example notebook runs in a real kernel and shows correct results."""

import base64
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbformat import NotebookNode
from PIL import Image

from tests.examples.notebook_pictures import NOTEBOOK, ROOT, render, without_remarks
from tests.support.notebook_kernel import execute, text_of

LARGEST_BYTES = 300_000
# Code that runs after the notebook's own cells, in its kernel.
_LOOK = """
import json, sys
print(json.dumps({
    "parity": version.report["manifest"]["parity"],
    "served": {name: float(np.abs(answer - expected).max()) for name, answer in answers.items()},
    "rows": len(expected),
    "accuracy": float((answers["REST"].argmax(axis=1) == test_y).mean()),
    "running": server.is_running,
    "log": "tpuserve is ready" in server.logs(),
    "in_kernel": [name for name in ("gevent", "locust", "pyvoy") if name in sys.modules],
}))
"""

# The group makes one process run the notebook.
slow = [pytest.mark.slow, pytest.mark.xdist_group("notebook")]


@pytest.fixture(scope="module")
def committed() -> NotebookNode:
    return nbformat.read(NOTEBOOK, as_version=4)


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, NotebookNode]:
    """Run the notebook and return its cells by id."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    notebook.cells.append(nbformat.v4.new_code_cell(_LOOK, id="look"))
    execute(notebook, tmp_path_factory.mktemp("notebook"))
    return {cell.id: cell for cell in notebook.cells}


def picture(cell: NotebookNode) -> np.ndarray:
    (encoded,) = (output.data["image/png"] for output in cell.outputs if "image/png" in output.get("data", {}))
    with Image.open(io.BytesIO(base64.b64decode(encoded))) as image:
        return np.asarray(image.convert("RGB"))


class TestExecuted:
    pytestmark = slow

    def test_the_server_answers_as_the_model_does(self, executed: Mapping[str, NotebookNode]) -> None:
        seen = json.loads(text_of(executed["look"]))
        assert seen["rows"] == 450
        assert seen["parity"]["max_abs_difference"] <= seen["parity"]["atol"] == 1e-5
        assert set(seen["served"]) == {"gRPC", "REST"}
        assert max(seen["served"].values()) <= 1e-5
        assert seen["accuracy"] > 0.95
        assert "gRPC: largest difference to the model " in text_of(executed["serve"])

    def test_the_server_has_ended_and_shared_nothing_with_the_kernel(
        self, executed: Mapping[str, NotebookNode]
    ) -> None:
        seen = json.loads(text_of(executed["look"]))
        assert (seen["running"], seen["log"], seen["in_kernel"]) == (False, True, [])

    def test_the_export_leaves_lines_of_long_steps_and_then_its_report(
        self, executed: Mapping[str, NotebookNode]
    ) -> None:
        steps, report = executed["export"].outputs[-2:]
        seconds = re.findall(r"([\d.]+) s\b", steps.data["text/html"])
        assert not [one for one in seconds if float(one) < 1]
        assert not re.search("[…✗]", steps.data["text/html"])
        assert "published as version 1" in report.data["text/html"]
        assert "<digits: version 1 at tpuserve-notebook/models/digits/1" in report.data["text/plain"]

    def test_progress_of_the_start_ends_with_the_addresses(self, executed: Mapping[str, NotebookNode]) -> None:
        (progress,) = (one for one in executed["serve"].outputs if one.output_type == "display_data")
        shown = progress.data["text/plain"]
        assert re.fullmatch(r"ready after [\d.]+ s: gRPC 127\.0\.0\.1:\d+, REST http://127\.0\.0\.1:\d+", shown)

    @pytest.mark.parametrize("name", ["answers", "load"])
    def test_plots_are_pictures_with_something_in_them(self, name: str, executed: Mapping[str, NotebookNode]) -> None:
        pixels = picture(executed[name])
        assert min(pixels.shape[:2]) > 250
        assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50

    def test_no_cell_shows_a_folder_of_this_machine(self, executed: Mapping[str, NotebookNode], tmp_path: Path) -> None:
        notebook = nbformat.v4.new_notebook(cells=[cell for name, cell in executed.items() if name != "look"])
        page = re.sub(r"base64,[^\"]+", "", render(without_remarks(notebook).cells))
        assert str(tmp_path.parents[1]) not in page
        assert str(ROOT) not in page


def test_the_committed_notebook_is_small_and_shows_outputs(committed: NotebookNode) -> None:
    nbformat.validate(committed)
    assert NOTEBOOK.stat().st_size < LARGEST_BYTES
    shown = {cell.id for cell in committed.cells if cell.cell_type == "code" and cell.outputs}
    assert {"data", "strategy", "train", "export", "serve", "answers", "load"} <= shown
    assert "1e-05" in render(committed.cells)


def test_the_committed_notebook_names_no_machine(committed: NotebookNode) -> None:
    assert set(committed.metadata) == {"kernelspec", "language_info"}
    page = re.sub(r"base64,[^\"]+", "", render(committed.cells))
    assert not re.search(r"/(home|root|work|tmp|Users)/", page)


def test_links_of_the_notebook_lead_somewhere(committed: NotebookNode) -> None:
    texts = [cell.source for cell in committed.cells if cell.cell_type == "markdown"]
    links = [link for text in texts for link in re.findall(r"\]\(([^)#]+)", text)]
    assert links
    assert all((NOTEBOOK.parent / link).is_file() for link in links)
