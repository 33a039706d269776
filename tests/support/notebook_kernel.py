"""Notebooks in a real kernel of this Python, on loopback."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from unittest import mock

from nbclient import NotebookClient
from nbformat import NotebookNode

CELL_TIMEOUT_S = 300


@contextlib.asynccontextmanager
async def kernel_of(notebook: NotebookNode, folder: Path) -> AsyncIterator[NotebookClient]:
    """Yield a client whose cells run in `folder`, and stop the kernel after the body.

    The client always uses this Python's kernel, and writes nothing to the user's directories.
    """
    folders = {name: str(folder / name.lower()) for name in ("IPYTHONDIR", "MPLCONFIGDIR", "JUPYTER_RUNTIME_DIR")}
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    with mock.patch.dict(os.environ, folders | {"JUPYTER_PREFER_ENV_PATH": "1"}):
        async with client.async_setup_kernel():
            yield client


def execute(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Run every cell in `folder`. Raises CellExecutionError for the first cell that fails."""

    async def run() -> None:
        async with kernel_of(notebook, folder) as client:
            for index, cell in enumerate(notebook.cells):
                await client.async_execute_cell(cell, index)

    asyncio.run(run())
    return notebook


def text_of(cell: NotebookNode) -> str:
    """Return the text that the cell displays."""
    shown = (output.text if output.output_type == "stream" else output.data["text/plain"] for output in cell.outputs)
    return "".join(shown)
