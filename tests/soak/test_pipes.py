"""Tests that a run that hangs in a write to a pipe ends when the soak gives it up."""

import os
import threading
from pathlib import Path

from tests.soak.faults_of_processes import let_go


def test_a_writer_goes_on_and_none_is_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    let_go(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=[b"outputs"], daemon=True)
    writer.start()
    let_go(pipe)
    writer.join(60)
    assert not writer.is_alive()
