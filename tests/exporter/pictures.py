"""`python -m tests.exporter.pictures`: make docs/images/export-*.{png,svg} from a real export of an example.

They show the terminal output as text, and the report page in a browser in light and dark mode.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.support.browser import open_browser
from tests.support.terminal_picture import draw_terminal, run_in_terminal, settle

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs/images"
COMMAND = (
    "export checkpoints models/text --model examples.text_classifier.model:build --sequence-buckets 8,16,32 "
    "--signature serving_default=tensor --signature examples=tf_example --serve-check --report report.html"
)
# The heading of the last section in the page's image.
_LAST = "Differences from the source"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    from examples.text_classifier.train import train

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:  # the browser writes files until it has ended
        folder = Path(name)
        train(folder / "checkpoints")
        # The command runs in a separate directory and imports the examples of this checkout.
        program = [str(Path(sys.executable).with_name("tpuserve")), *COMMAND.split()]
        shown = settle(run_in_terminal(program, folder, {"PYTHONPATH": str(ROOT)}))
        draw_terminal(f"$ tpuserve {COMMAND}\n{shown}", IMAGES / "export-terminal.svg", "tpuserve export")
        with open_browser(folder / "profile") as browser:
            for scheme in ("light", "dark"):
                browser.open(folder / "report.html", 1100, scheme)
                browser.take_picture(IMAGES / f"export-report-{scheme}.png", browser.section_end(_LAST))


if __name__ == "__main__":
    main()
