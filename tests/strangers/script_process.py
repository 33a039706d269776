"""`python -m tests.strangers.script_process MODULE:FUNCTION FOLDER OUT_BASE`: export a live model from a user's script.

Prints one JSON document like `tpuserve export --json`: the report of the published version, or the error.
"""

import importlib
import json
import sys
from pathlib import Path

from tpuserve_exporter import ExportError


def main(script: str, folder: Path, base_path: Path) -> int:
    module, _, function = script.partition(":")
    try:
        published = getattr(importlib.import_module(module), function)(folder, base_path)
    except ExportError as error:
        print(json.dumps({"ok": False, "error": str(error), "exit_code": error.exit_code}))
        return error.exit_code
    print(json.dumps(dict(published.report)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
