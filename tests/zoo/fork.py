"""Fork: a function in a separate process, which may end or hang.

The process is a fork of one that has imported TensorFlow and the server, but has never run a session: a fork takes
milliseconds, and an import takes seconds.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

_processes: Final = multiprocessing.get_context("fork")
START_PATIENCE_S: Final = 60.0


class Ended(Exception):
    """The process ended. The message names the signal."""


class Hung(Exception):
    """The process did not answer in time, and was killed."""


class Fork:
    """A process that answers messages one by one, from its first message until it ends. The next one starts another."""

    def __init__(self, open_: Callable[[], Callable[[Any], object]]) -> None:
        """Take the function that runs first in the process. It returns the one that answers each message."""
        self._open = open_
        self._process: Any = None
        self._pipe: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def ask(self, message: object, patience_s: float) -> Any:  # noqa: ANN401 - what `open_` returned answers
        """Return the answer to a message.

        Raises:
            Hung: there is none for so long.
            Ended: the process ended.
        """
        if self._process is None:
            self._start()
        try:
            self._pipe.send(message)
            return self._receive(patience_s)
        except (EOFError, ConnectionError):
            self._process.join()
            status = self._process.exitcode
            self._end()
            raise Ended(signal.Signals(-status).name if status < 0 else f"exit status {status}") from None

    def _start(self) -> None:
        self._pipe, theirs = _processes.Pipe()
        self._process = _processes.Process(target=_serve, args=(self._open, theirs), daemon=True)
        self._process.start()
        theirs.close()
        error = self._receive(START_PATIENCE_S)
        if error:
            self._end()
            raise ValueError(error)

    def _receive(self, patience_s: float) -> Any:  # noqa: ANN401 - see `ask`.
        if not self._pipe.poll(patience_s):
            self._end()
            raise Hung
        return self._pipe.recv()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None


def _serve(open_: Callable[[], Callable[[Any], object]], pipe: Any) -> None:  # noqa: ANN401 - multiprocessing's
    # Operations that end the process first write why.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        answer = open_()
    except Exception as error:
        pipe.send(str(error) or repr(error))
        return
    pipe.send("")
    while True:
        try:
            message = pipe.recv()
        except EOFError:
            os._exit(0)
        pipe.send(answer(message))
