"""Tests that sources without read permission give exit code 6 and name the file.

Root can read everything, so a process without that capability runs the exports.
"""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests.support.optional import missing

pytestmark = [pytest.mark.xdist_group(__name__)]
WITHOUT_PRIVILEGE = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]
# Source, locked file, further arguments.
CASES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "a directory": ("checkpoints", "checkpoints", ("--model", "tests.exporter.builders:tiny")),
    "a parent directory": ("checkpoints/ckpt-1", "checkpoints", ("--model", "tests.exporter.builders:tiny")),
    "a state file": ("checkpoints", "checkpoints/checkpoint", ("--model", "tests.exporter.builders:tiny")),
    "an index": ("checkpoints", "checkpoints/ckpt-1.index", ("--model", "tests.exporter.builders:tiny")),
    "a shard": (
        "checkpoints", "checkpoints/ckpt-1.data-00000-of-00001", ("--model", "tests.exporter.builders:tiny"),
    ),
    "a .keras file": ("tiny.keras", "tiny.keras", ()),
    "an .h5 file": ("tiny.h5", "tiny.h5", ()),
    "a SavedModel's directory": ("saved", "saved", ()),
    "a SavedModel's graph": ("saved", "saved/saved_model.pb", ()),
    "a SavedModel's variables": ("saved", "saved/variables", ()),
    "a SavedModel's index": ("saved", "saved/variables/variables.index", ()),
    "a SavedModel's shard": ("saved", "saved/variables/variables.data-00000-of-00001", ()),
    "a .meta graph": ("tf1/model.meta", "tf1/model.meta", ("--input-tensor", "x", "--output-tensor", "y")),
    "its values": ("tf1/model.meta", "tf1/model.data-00000-of-00001", ("--input-tensor", "x", "--output-tensor", "y")),
    "its index": ("tf1/model.meta", "tf1/model.index", ("--input-tensor", "x", "--output-tensor", "y")),
    "an Orbax tree": ("orbax", "orbax", ("--model", "tests.exporter.builders:tiny")),
    "a pipe": ("pipe.keras", "pipe.keras", ()),
}  # fmt: skip
PROGRAM = """
import json, stat, sys
from pathlib import Path
from click.testing import CliRunner
from tpuserve_exporter.command.exporting import command
from tpuserve_exporter.command.inspecting import command as inspect

for source, locked, arguments in json.load(sys.stdin):
    mode = stat.S_IMODE(Path(locked).stat().st_mode)
    Path(locked).chmod(0)
    try:
        for program, given in ((command, [source, "base/m", *arguments]), (inspect, [source])):
            done = CliRunner().invoke(program, [*given, "--json"], standalone_mode=False)
            print(json.dumps([done.return_value, done.exit_code, done.stdout, repr(done.exception)]))
    finally:
        Path(locked).chmod(mode)
"""


@pytest.fixture(scope="module")
def folder(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import tensorflow as tf

    from tests.exporter import builders

    folder = tmp_path_factory.mktemp("sources")
    model = builders.tiny()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from Keras: numpy's copy keyword, and the legacy HDF5 format
        for name in ("tiny.keras", "tiny.h5"):
            model.save(folder / name)
        model.export(folder / "saved", verbose=False)
    (folder / "checkpoints").mkdir()
    tf.train.Checkpoint(model=model).save(str(folder / "checkpoints/ckpt"))
    (folder / "orbax").mkdir()
    (folder / "orbax/_METADATA").write_text("{}")
    os.mkfifo(folder / "pipe.keras")
    (folder / "tf1").mkdir()
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None, 2], "x")
        tf.matmul(x, tf.compat.v1.get_variable("v", [2, 2]), name="y")
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(folder / "tf1/model"))
    return folder


def test_every_unreadable_source_is_exit_code_6_and_named(folder: Path) -> None:
    if os.geteuid() == 0 and (reason := missing("setpriv")):
        pytest.skip(f"root reads everything: {reason}")
    prefix = WITHOUT_PRIVILEGE if os.geteuid() == 0 else []
    done = subprocess.run(
        [*prefix, sys.executable, "-c", PROGRAM],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), "TF_CPP_MIN_LOG_LEVEL": "3"},
        input=json.dumps(list(CASES.values())),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * len(CASES), done.stderr
    found = {}
    for number, name in enumerate(CASES):
        export, inspected = (json.loads(line) for line in lines[2 * number : 2 * number + 2])
        found[name] = (export[0], inspected[0])
        message = json.loads(export[2])["error"]
        assert Path(CASES[name][0]).stem in message or Path(CASES[name][1]).name in message, (name, message)
        assert "Errno" not in message, (name, message)
    # An inspection of a .meta graph reads no values.
    assert found == {**dict.fromkeys(CASES, (6, 6)), "its values": (6, 0)}
