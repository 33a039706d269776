"""The files of credentials: reads them at the start, then polls them on a thread and applies changes."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from tpuserve_server.access.authenticator import Authenticator, KnownClients
from tpuserve_server.access.credentials import Credentials, CredentialsError, parse_credentials
from tpuserve_server.access.options import IdentityOptions
from tpuserve_server.access.tokens import TokenRules, Tokens, parse_jwks
from tpuserve_server.core.terms.storage import FileName

_log = logging.getLogger(__name__)

# A JWKS and a Kubernetes Secret are far smaller.
MAX_FILE_BYTES: Final = 16 << 20

# Returns the content of a file of at most so many bytes. Raises OSError with a reason for an operator.
ReadFile: TypeAlias = Callable[[FileName, int], bytes]


class CredentialFiles:
    """The files, and an Authenticator of the clients in them, which follows their changes.

    An invalid file changes nothing, and `problem` says why until a valid one replaces it. The thread owns the fields
    once it runs, except that any thread may read `problem`, and call `poll_soon` and `stop`.
    """

    def __init__(self, options: IdentityOptions, read: ReadFile) -> None:
        """Read the files. Blocks. Raises CredentialsError if one cannot be used."""
        self._options = options
        self._read = read
        self._texts = self._read_texts()
        self.authenticator = Authenticator(self._parse(self._texts), options.anonymous)
        # Why the last read failed, without a path. Empty: it did not.
        self.problem = ""
        self._wake = threading.Event()
        self._is_asked = False
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start to poll."""
        _log.info("The server identifies its clients. %s", describe(self.authenticator.known))
        self._thread = threading.Thread(target=self._run, name="credentials", daemon=True)
        self._thread.start()

    def poll_soon(self) -> None:
        """Poll at once, on the thread, and log the outcome in any case."""
        self._is_asked = True
        self._wake.set()

    def stop(self) -> None:
        """Stop the thread after the poll in progress. Blocks."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def poll(self) -> None:
        """Read the files once, and apply a change. Blocks."""
        was_asked, self._is_asked = self._is_asked, False
        try:
            texts = self._read_texts()
            if texts == self._texts:
                self.problem = ""
                if was_asked:
                    _log.info("The credentials have not changed")
                return
            known = self._parse(texts)
        except CredentialsError as error:
            self._complain(str(error), even_again=was_asked)
            return
        self._texts, self.problem = texts, ""
        self.authenticator.known = known
        _log.info("Applied changed credentials. %s", describe(known))

    def _run(self) -> None:
        while True:
            self._wake.wait(self._options.credentials_poll_wait_seconds or None)
            # Clear the event before polling, so that the next round sees what is asked during the poll.
            self._wake.clear()
            if self._stopping:
                return
            try:
                self.poll()
            except Exception:  # A bug must not stop the polls that read the next file.
                _log.exception("Polling the files of credentials failed")

    def _complain(self, reason: str, *, even_again: bool) -> None:
        if reason != self.problem or even_again:
            self.problem = reason
            _log.error("Credentials refused; the server keeps the previous ones: %s", reason)

    def _read_texts(self) -> tuple[str | None, str | None]:
        files = {"credentials_file": self._options.credentials_file, "jwt_jwks_file": self._options.jwt_jwks_file}
        credentials, jwks = (self._read_text(flag, path) for flag, path in files.items())
        return credentials, jwks

    def _read_text(self, flag: str, path: FileName | None) -> str | None:
        if path is None:
            return None
        with _named(flag):
            return read_text(path, self._read)

    def _parse(self, texts: tuple[str | None, str | None]) -> KnownClients:
        credentials, jwks = texts
        with _named("credentials_file"):
            known = Credentials() if credentials is None else parse_credentials(credentials)
        if jwks is None:
            return KnownClients(known)
        options = self._options
        rules = TokenRules(
            options.jwt_issuer or "", options.jwt_audience or "", options.jwt_role_claim, options.jwt_model_claim
        )
        with _named("jwt_jwks_file"):
            return KnownClients(known, Tokens(parse_jwks(jwks), rules))


def read_text(path: FileName, read: ReadFile) -> str:
    """Return the text of a file of credentials. Blocks. Raises CredentialsError."""
    try:
        return read(path, MAX_FILE_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise CredentialsError(f"the file cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise CredentialsError("the file is not UTF-8") from None


@contextlib.contextmanager
def _named(flag: str) -> Iterator[None]:
    """Name the flag in errors of its file."""
    try:
        yield
    except CredentialsError as error:
        raise CredentialsError(f"{flag}: {error}") from None


def describe(known: KnownClients) -> str:
    """Return the number of credentials of each kind for people."""
    keys, certificates = len(known.credentials.keys), len(known.credentials.certificates)
    tokens = "tokens" if known.tokens is not None else "no tokens"
    return f"API keys: {keys}, client certificates: {certificates}, {tokens}"
