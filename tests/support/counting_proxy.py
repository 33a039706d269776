"""CountingProxy: a server between a store and its clients, which counts requests and delays them."""

import http.client
import re
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}


class CountingProxy:
    """Forwards each request to a store on this machine after `delay_s` seconds.

    `listings` counts the listings by prefix, `others` all other requests, and `most_at_once` is the largest number of
    requests that were in progress at the same time. `refuses` answers every listing with 503, as a store that
    throttles does. `lock` guards the counts.
    """

    def __init__(self, store_port: int, delay_s: float = 0.0, tls: ssl.SSLContext | None = None) -> None:
        self.delay_s = delay_s
        self.refuses = False
        self.lock = threading.Lock()
        self.listings: Counter[str] = Counter()
        self.others = 0
        self.most_at_once = 0
        self._at_once = 0
        self._store_port = store_port
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self._server.server_address[1]

    @contextmanager
    def running(self) -> Iterator["CountingProxy"]:
        thread = threading.Thread(target=self._server.serve_forever, name="counting-proxy")
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def count(self) -> int:
        """Return the number of listings so far."""
        with self.lock:
            return self.listings.total()

    def _begin(self, method: str, target: str) -> bool:
        """Count a request, and return whether it is a listing."""
        url = urlsplit(target)
        query = parse_qs(url.query)
        is_listing = method == "GET" and ("list-type" in query or url.path.endswith("/o"))
        with self.lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            if is_listing:
                self.listings[query.get("prefix", [""])[0]] += 1
            else:
                self.others += 1
        return is_listing

    def _end(self) -> None:
        with self.lock:
            self._at_once -= 1

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def forward(self) -> None:
                is_listing = proxy._begin(self.command, self.path)
                try:
                    # The latency of a remote store.
                    time.sleep(proxy.delay_s)
                    if is_listing and proxy.refuses:
                        self._answer(503, [], b"<Error><Code>SlowDown</Code></Error>")
                        return
                    self._forward()
                finally:
                    proxy._end()

            def _forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                store = http.client.HTTPConnection("127.0.0.1", proxy._store_port, timeout=60)
                # moto would return larger pages than S3 does.
                target = re.sub(r"max-keys=\d{4,}", "max-keys=1000", self.path)
                headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
                store.request(self.command, target, body, headers)
                answer = store.getresponse()
                content = answer.read()
                kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP]
                length = answer.getheader("Content-Length") if self.command == "HEAD" else None
                self._answer(answer.status, kept, content, length)
                store.close()

            def _answer(
                self, status: int, headers: list[tuple[str, str]], content: bytes, length: str | None = None
            ) -> None:
                self.send_response_only(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", length or str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = forward

            def log_message(self, *_args: object) -> None:
                pass

        return Handler
