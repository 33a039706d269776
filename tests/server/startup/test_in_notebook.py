"""Tests that a server from a notebook survives the interrupt of a cell and ends with the kernel."""

import asyncio
import json
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat import NotebookNode

from tests.support.notebook_kernel import kernel_of, text_of

pytestmark = [pytest.mark.slow]

END_TIMEOUT_S = 60.0
START = """
import tpuserve_server
server = tpuserve_server.start({{"half": {model!r}}}, prefer_tflite_model=True)
"""
# Cells run in an event loop.
START_IN_THREAD = """
import asyncio
second = await asyncio.to_thread(
    tpuserve_server.start, {{"half": {model!r}}}, prefer_tflite_model=True, progress=False
)
"""
LOOK = "import json; print(json.dumps([server.pid, second.pid, server.is_running and second.is_running]))"


def cells(*sources: str) -> NotebookNode:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])


async def test_a_server_lives_through_an_interrupt_and_ends_with_the_kernel(light_model: Path, tmp_path: Path) -> None:
    model = str(light_model)
    notebook = cells(
        START.format(model=model), START_IN_THREAD.format(model=model), "import time; time.sleep(600)", LOOK
    )
    start, start_in_thread, sleep, look = notebook.cells
    async with kernel_of(notebook, tmp_path) as client:
        await client.async_execute_cell(start, 0)
        assert "ready after" in text_of(start)
        await client.async_execute_cell(start_in_thread, 1)
        assert text_of(start_in_thread) == ""
        client.allow_errors = True
        sleeping = asyncio.create_task(client.async_execute_cell(sleep, 2))
        while not (await asyncio.wait({sleeping}, timeout=1.0))[0]:
            # An interrupt has no effect before the cell begins.
            await client.km.interrupt_kernel()
        assert sleep.outputs[0].ename == "KeyboardInterrupt"
        await client.async_execute_cell(look, 3)
        *pids, running = json.loads(text_of(look))
        assert running
        servers = [psutil.Process(pid) for pid in pids]
        await client.km.restart_kernel()
        assert not psutil.wait_procs(servers, END_TIMEOUT_S)[1]
