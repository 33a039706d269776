"""`python -m tests.loadtests.pictures [COMMAND...]`: make docs/images/loadtest-*.{png,svg} from real runs.

`live` is a terminal during `run`. `run`, `live` and `rollout` load a real server. The others load a simulated device,
whose limits do not depend on the machine.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal

from PIL import Image

from tests.e2e.running_server import run_configured_server, run_server
from tests.loadtests.doubling_server import MODEL, Doubling, serving
from tests.support.browser import Browser, open_browser
from tests.support.saved_models import save_mlp
from tests.support.terminal_picture import draw_terminal, run_in_terminal, settle

IMAGES: Final = Path(__file__).resolve().parents[2] / "docs/images"
# Options of each command, and the heading of the last section in its image.
PAGES: Final = {
    "run": (["--rate", "50..200", "--duration", "20s", "--fail-if", "p99>100ms", "error_rate>1%"], "Time breakdown"),
    "sweep": (["--users", "1,2,4,8,16"], "Latency by load"),
    "search": (["--slo", "p90<=120ms", "--duration", "15s", "--precision", "0.1", "--from", "16"], "Trials by rate"),
    "compare": (["--users", "1", "--duration", "6s", "--rounds", "4"], "Difference"),
    "mlperf": (["--scenario", "server", "--latency", "60ms", "--target-qps", "100", "--quick"], "Latency"),
    "rollout": (["--to", "2", "--model_config_file", "models.config", "--rate", "100", "--rounds", "4",
                 "--duration", "6s", "--least-effect", "0.5", "--unclear", "note",
                 "--canary-duration", "10s", "--soak", "40s", "--segments", "20",
                 "--execute"], "Difference"),
}  # fmt: skip
# Options of the run in the terminal.
_LIVE: Final = "--rate 200 --duration 10s --fail-if p99>100ms"
_WIDTH: Final = 1100
# Colours of an image. A page uses few, and antialiasing between them would double the file size.
_COLOURS: Final = 96
# Two equal versions, of which the first is live.
_CONFIGURATION: Final = """\
model_config_list {
  config {
    name: "mlp" base_path: "%s" model_platform: "tensorflow"
    model_version_policy { all {} }
    version_labels { key: "stable" value: 1 }
  }
}
"""


def main() -> None:
    """Make the images of the commands on the command line, or of all commands."""
    commands = sys.argv[1:] or [*PAGES, "live"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:  # the browser writes files until it has ended
        folder = Path(name)
        if "live" in commands:
            commands.remove("live")
            draw_live(folder)
        for command in commands:
            load(command, folder)
        with open_browser(folder / "profile") as browser:
            for command in commands:
                for scheme in ("light", "dark"):
                    _take(browser, folder / f"{command}.html", PAGES[command][1], scheme)


def draw_live(folder: Path) -> None:
    """Draw a terminal shortly before the end of a run, and after it."""
    save_mlp(folder / "mlp/1")
    with run_server(folder / "mlp", folder / "log", "--enable_batching=true", model="mlp") as server:
        program = str(Path(sys.executable).with_name("tpuserve"))
        where = ["--grpc", server.grpc, "--rest", server.rest]
        written = run_in_terminal([program, "loadtest", "run", "mlp", *where, *_LIVE.split()], folder, {})
    # The line of the progress is rewritten in place. The last rewriting removes it.
    during = settle(written[: written.rindex("Running for")] + written[written.rindex("Running for") :].split("\r")[0])
    shown = f"$ tpuserve loadtest run mlp --grpc HOST:8500 --rest http://HOST:8501 {_LIVE}\n"
    draw_terminal(shown + during, IMAGES / "loadtest-live.svg", "tpuserve loadtest run")
    draw_terminal(shown + settle(written), IMAGES / "loadtest-terminal.svg", "tpuserve loadtest run")


def load(command: str, folder: Path) -> None:
    """Run a command against its server. The page's file name is the command's name."""
    with ExitStack() as stack:
        if command == "run":
            save_mlp(folder / "mlp/1")
            flags = ("--enable_batching=true",)
            server = stack.enter_context(run_server(folder / "mlp", folder / "log", *flags, model="mlp"))
            _run(command, folder, ["mlp", "--grpc", server.grpc, "--rest", server.rest])
        elif command == "rollout":
            for version in ("1", "2"):
                save_mlp(folder / "versions" / version)
            file = folder / "models.config"
            file.write_text(_CONFIGURATION % (folder / "versions"))
            flag = f"--model_config_file={file}"
            site = stack.enter_context(run_configured_server(folder / "log", flag, model="mlp"))
            _run(command, folder, ["mlp", "--grpc", site.grpc, "--rest", site.rest])
        elif command == "mlperf":
            quick = stack.enter_context(serving(Doubling(service_s=0.004)))
            _run(command, folder, [MODEL, "--grpc", quick.grpc_address])
        elif command == "compare":
            sides = [stack.enter_context(serving(Doubling(service_s=seconds))) for seconds in (0.020, 0.024)]
            _run(command, folder, [MODEL, *(side.grpc_address for side in sides)])
        else:
            server_of_both = stack.enter_context(serving(Doubling(service_s=0.020)))
            _run(command, folder, [MODEL, "--grpc", server_of_both.grpc_address])


def _run(command: str, folder: Path, where: Sequence[str]) -> None:
    program = [str(Path(sys.executable).with_name("tpuserve-loadtest")), command]
    if command == "rollout":
        program = [sys.executable, "-c", "from tpuserve_loadtests.cli.rollout_command import main; main()"]
    # The options as a user would write them, because the page shows them.
    options = [*PAGES[command][0], "--html", f"{command}.html", "--generator-limit", "note"]
    subprocess.run([*program, *where, *options], cwd=folder, check=False)


def _take(browser: Browser, page: Path, last: str, scheme: Literal["light", "dark"]) -> None:
    picture = IMAGES / f"loadtest-{page.stem}-{scheme}.png"
    browser.open(page, _WIDTH, scheme)
    browser.take_picture(picture, browser.section_end(last))
    whole = Image.open(picture).convert("RGB")
    # Other quantization methods tint the page's background.
    whole.quantize(_COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(picture, optimize=True)


if __name__ == "__main__":
    main()
