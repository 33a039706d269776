"""A small Kubernetes API server for one object, and a kubelet's volumes of a ConfigMap.

No registry has a real API server. This one follows the documented rules of the requests that `kubectl --raw` sends:
GET and PUT of an object; optimistic concurrency by `metadata.resourceVersion` (409, reason Conflict); 404 NotFound;
403 Forbidden for a user without the verb; `dryRun=All`. It knows nothing else of Kubernetes. kubectl sends tokens only
with TLS, so the user is the first part of the path here.
https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

import yaml

EDITOR, READER = "editor", "reader"

_State = TypeVar("_State", bound="ObjectServer")


@dataclass
class ObjectServer:
    """The state of the server: the object `name` in `namespace`. `put` belongs to the subclass."""

    namespace: str
    name: str
    resource: ClassVar[str]
    prefix: ClassVar[str]
    version: int = field(default=7, kw_only=True)
    # Called before a PUT is handled, as another client that is faster.
    before_put: Callable[[], None] = field(default=lambda: None, kw_only=True)
    # The body of every response, as of a proxy that is no API server.
    page: str = field(default="", kw_only=True)
    requests: list[str] = field(default_factory=list, kw_only=True)
    address: str = field(default="", kw_only=True)
    lock: threading.RLock = field(default_factory=threading.RLock, kw_only=True)

    @property
    def path(self) -> str:
        return f"{self.prefix}/namespaces/{self.namespace}/{self.resource}/{self.name}"

    @property
    def metadata(self) -> dict[str, Any]:
        return {"name": self.name, "namespace": self.namespace, "resourceVersion": str(self.version)}

    def get(self) -> dict[str, Any]:
        raise NotImplementedError

    def replace(self, document: dict[str, Any]) -> None:
        """Take the content of a valid PUT."""
        raise NotImplementedError

    def put(self, document: dict[str, Any], *, dry_run: bool) -> tuple[int, dict[str, Any]]:
        self.before_put()
        with self.lock:
            expected = document["metadata"].get("resourceVersion")
            if expected not in (None, str(self.version)):
                subject = f'{self.resource} "{self.name}"'
                words = f"Operation cannot be fulfilled on {subject}: the object has been modified"
                return 409, failure(409, "Conflict", words)
            if dry_run:
                return 200, document
            self.replace(document)
            return 200, self.get()

    def kubeconfig(self, path: Path, user: str = EDITOR) -> Path:
        """Write a kubeconfig for this server, and return its path."""
        named = {"name": "test"}
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{**named, "cluster": {"server": f"{self.address}/{user}"}}],
                    "users": [{**named, "user": {}}],
                    "contexts": [{**named, "context": {"cluster": "test", "user": "test"}}],
                    "current-context": "test",
                }
            )
        )
        return path


@dataclass
class ConfigMapServer(ObjectServer):
    """A ConfigMap. `on_change` receives each new data."""

    data: dict[str, str]
    resource = "configmaps"
    prefix = "api/v1"
    on_change: Callable[[dict[str, str]], None] = lambda data: None

    def change(self, data: dict[str, str]) -> None:
        """Change the data as another client does."""
        with self.lock:
            self.data, self.version = dict(data), self.version + 1
        self.on_change(self.data)

    def get(self) -> dict[str, Any]:
        with self.lock:
            return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": self.metadata, "data": dict(self.data)}

    def replace(self, document: dict[str, Any]) -> None:
        self.change(document["data"])


def failure(code: int, reason: str, message: str) -> dict[str, Any]:
    """Return the Status of an error."""
    return {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    }  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: ObjectServer

    def do_GET(self) -> None:
        self._answer(self._refusal("get") or (200, self.state.get()))

    def do_PUT(self) -> None:
        document = json.loads(self._body())
        dry_run = "dryRun=All" in urlsplit(self.path).query
        self._answer(self._refusal("update") or self.state.put(document, dry_run=dry_run))

    def log_message(self, *_: object) -> None:
        pass

    def _refusal(self, verb: str) -> tuple[int, dict[str, Any]] | None:
        state = self.state
        user, _, path = urlsplit(self.path).path.removeprefix("/").partition("/")
        name = path.rpartition("/")[2]
        state.requests.append(f"{self.command} {path}")
        if user != EDITOR and verb != "get":
            words = f'{state.resource} "{name}" is forbidden: User "{user}" cannot {verb} resource "{state.resource}"'
            return 403, failure(403, "Forbidden", words)
        if path != state.path:
            return 404, failure(404, "NotFound", f'{state.resource} "{name}" not found')
        return None

    def _body(self) -> bytes:
        """Read the body, which kubectl sends in chunks."""
        if "content-length" in self.headers:
            return self.rfile.read(int(self.headers["content-length"]))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, answer: tuple[int, dict[str, Any]]) -> None:
        code, document = answer
        body = (self.state.page or json.dumps(document)).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(state: _State) -> Iterator[_State]:
    """Serve the object on a free port of 127.0.0.1."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"state": state}))
    server.daemon_threads = True
    state.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, name="kubernetes-api")
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Volume:
    """The volume of a ConfigMap in a pod, which `update` changes as the kubelet's AtomicWriter does.

    The files are symbolic links through `..data` to a directory. An update writes a new directory, and then renames
    another link over `..data`, so that all files change in one step.
    """

    def __init__(self, folder: Path, data: dict[str, str]) -> None:
        self._folder = folder
        self._updates = 0
        folder.mkdir(parents=True)
        self.update(data)
        for name in data:
            (folder / name).symlink_to(f"..data/{name}")

    def path(self, name: str) -> Path:
        return self._folder / name

    def update(self, data: dict[str, str]) -> None:
        self._updates += 1
        new = self._folder / f"..2026_11_30_{self._updates}"
        new.mkdir()
        for name, text in data.items():
            (new / name).write_text(text, encoding="utf-8")
        link = self._folder / "..data_tmp"
        link.symlink_to(new.name)
        os.replace(link, self._folder / "..data")
