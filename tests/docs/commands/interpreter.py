"""Program of `open_python`. It runs in the environment of the page, so it imports the standard library alone.

It reads paths of files from standard input and runs each in one module. After each it prints the mark, which is its
argument, and the exit code.
"""

import ast
import asyncio
import inspect
import os
import sys
import traceback
from pathlib import Path


def run_pieces(mark: str) -> None:
    """Run each piece until the end of the input."""
    commands = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.path[0] = ""
    loop = asyncio.new_event_loop()
    names = {"__name__": "__main__"}
    for line in commands:
        path = line.strip()
        status = 0
        try:
            source = Path(path).read_text(encoding="utf-8")
            code = compile(source, path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = eval(code, names)
            if inspect.iscoroutine(result):
                loop.run_until_complete(result)
        except BaseException:  # also SystemExit, which would end the session
            traceback.print_exc(file=sys.stdout)
            status = 1
        print(f"{mark}{status}", flush=True)


if __name__ == "__main__":
    run_pieces(sys.argv[1])
