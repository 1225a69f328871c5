# SPDX-License-Identifier: Apache-2.0
"""kvtier.adapters.llama_relay - the connections of kvtier.llama_proxy: a request of a client, and the server's answer.

A POST that completes a prompt is a Question of kvtier.llama_server: a slot is restored for it, it is sent to the server
with the number of that slot, and what is new is stored when the answer has been relayed. All else is handed on as it
came: paths, headers, bodies, what kvtier does not serve, and the answers, errors among them, byte for byte.

A connection has a thread. It waits for its client, for a slot, or for the server; while it waits for the server, the
thread of _Watch looks whether the client is there. If it has gone, the connection to the server is cut, which tells the
server, and the slot's part of the prompt is stored. A server that is away costs 502. One that dies in an answer cuts it
off, as it would without the proxy.

The proxy makes a request anew from what it has understood, with a length of its own, so a request that can be read in
two ways is no way around anything. Bodies, connections and waits for a client are bounded by the numbers below.
"""
from __future__ import annotations

import contextlib
import functools
import hmac
import http.client
import http.server
import json
import logging
import select
import socket
import socketserver
import sys
import threading
import urllib.parse
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from ..llama_server import PATHS, Question, SlotCache

__all__ = ["Proxy"]

_log = logging.getLogger("kvtier")
_CONNECTIONS = 256              # of clients; more of them wait to be accepted
_BODY_MAX = 100 << 20           # bytes of a request
_CLIENT_S = 60                  # a client may take so long to send a part of its request, or to take one of the answer
_CONNECT_S = 10
_ANSWER_S = 3600                # a server may be silent so long, as by its own default
_PIECE = 1 << 16
_KEPT_MAX = 16 << 20            # bytes of an answer, or of one part of a stream, in which timings are looked for
# Headers that are about one connection, or that the proxy writes itself.
_OWN = {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "expect",
        "host", "content-length"}
_SERVER_ERRORS = (OSError, http.client.HTTPException)


class _Gone(Exception):
    """The client does not wait any more."""


class _Refused(Exception):
    """(status, message): a request that is not handed on."""


def _has_gone(client: socket.socket) -> bool:
    poll = select.poll()
    poll.register(client, select.POLLRDHUP)
    return bool(poll.poll(0))


class _Watch:
    """Sees that a client closes its connection, in a thread of its own."""

    def __init__(self) -> None:
        self._epoll, self._lock = select.epoll(), threading.Lock()     # the lock guards the clients. A leaf.
        self._clients: Dict[int, Tuple[socket.socket, Callable[[], None]]] = {}
        threading.Thread(target=self._run, daemon=True).start()

    @contextlib.contextmanager
    def over(self, client: socket.socket, gone: Callable[[], None]) -> Iterator[None]:
        """For a `with` block: calls gone() if the client closes its connection meanwhile. It may not block."""
        number = client.fileno()
        with self._lock:
            self._clients[number] = client, gone
            self._epoll.register(number, select.EPOLLRDHUP | select.EPOLLONESHOT)
        try:
            yield
        finally:
            with self._lock:
                self._epoll.unregister(number)
                del self._clients[number]

    def _run(self) -> None:
        while True:
            for number, _ in self._epoll.poll():
                with self._lock:
                    client, gone = self._clients.get(number, (None, None))
                    if client is not None and _has_gone(client):    # the event may be of one before
                        gone()


def _cut(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        server.shutdown(socket.SHUT_RDWR)


def _own(headers: Any) -> set:
    """The names of the headers that are not handed on."""
    return _OWN.union(name.strip().lower() for name in (headers.get("Connection") or "").split(","))


class _Answer:
    """The server's answer to one request, and what its bytes say as they pass."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.response, self.timings, self.begun, self._kept = response, {}, False, b""
        self.length = response.length       # of the body; None: it is not said. The response counts it down.
        self._stream = response.headers.get_content_type() == "text/event-stream"

    def pieces(self) -> Iterator[bytes]:
        """Yields the body. HTTPException: the server cut it off."""
        left = self.length
        while left != 0:
            piece = self.response.read1(_PIECE if left is None else min(left, _PIECE))
            if not piece:
                break
            left = None if left is None else left - len(piece)
            self._see(piece)
            yield piece
        if left:
            raise http.client.IncompleteRead(b"", left)
        self._say(self._kept)

    def _see(self, piece: bytes) -> None:
        """Looks at the whole lines of a stream. Another answer is looked at when it is complete."""
        *lines, self._kept = (self._kept + piece).split(b"\n") if self._stream else [self._kept + piece]
        for line in lines:
            kind, _, data = line.partition(b":")
            if kind in (b"data", b"error"):
                self.begun = True
                self._say(data)
        if len(self._kept) > _KEPT_MAX:
            self._kept = b""

    def _say(self, data: bytes) -> None:
        if b'"timings"' in data:
            with contextlib.suppress(ValueError, RecursionError, AttributeError):
                found = json.loads(data).get("timings")
                self.timings = found if isinstance(found, dict) else self.timings


class _Handler(http.server.BaseHTTPRequestHandler):
    """The connection of a client."""
    server: "Proxy"
    protocol_version, timeout, disable_nagle_algorithm = "HTTP/1.1", _CLIENT_S, True

    def _hand_on(self) -> None:
        """One request."""
        answer: Optional[_Answer] = None
        try:
            data = self._body()
            with self._question(data) as question, contextlib.ExitStack() as ends:
                try:
                    answer, pieces = self._asked(question, data, ends)
                    self._relay(answer, pieces)
                except _Gone:
                    pass
                except _SERVER_ERRORS as error:
                    self.close_connection = True
                    if not _has_gone(self.connection):
                        self._failed(question, answer, error)
                        return
                ends.close()        # so that the server learns that its client has gone
                if question is not None and (answer is None or answer.response.status == 200):
                    timings = answer.timings if answer else {}
                    question.ended(timings)
                    self._tell(question, timings)
        except _Refused as error:
            self.send_error(*error.args)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _hand_on

    def _body(self) -> bytes:
        lengths, coding = self.headers.get_all("Content-Length") or [], self.headers.get("Transfer-Encoding")
        if coding is None and not lengths:
            return b""
        if coding is not None and (lengths or coding.strip().lower() != "chunked"):
            raise _Refused(400, f"a body with Transfer-Encoding {coding!r} and {len(lengths)} Content-Length cannot be "
                                "read: send one Content-Length, or chunked alone")
        if coding is None:
            if len(lengths) != 1 or not (lengths[0].isascii() and lengths[0].isdigit()):
                raise _Refused(400, f"Content-Length is {', '.join(lengths)[:80]!r}, must be one number")
            return self._read(int(lengths[0]), 0)
        data = bytearray()
        while True:
            line = self.rfile.readline(_PIECE)
            try:
                size = int(line.partition(b";")[0], 16)
            except ValueError:
                size = -1
            if size < 0:
                raise _Refused(400, f"a chunk of the body begins with {line[:40]!r}, must begin with its length")
            data += self._read(size, len(data))
            if size == 0:
                while self.rfile.readline(_PIECE).strip():      # trailers
                    pass
                return bytes(data)
            self.rfile.readline(_PIECE)

    def _read(self, n: int, before: int) -> bytes:
        if before + n > _BODY_MAX:
            raise _Refused(413, f"the body has more than {_BODY_MAX} bytes")
        data = self.rfile.read(n)
        if len(data) < n:
            raise _Refused(400, f"the body ends {n - len(data)} bytes too early")
        return data

    @contextlib.contextmanager
    def _question(self, data: bytes) -> Iterator[Optional[Question]]:
        """Yields None for a request that is handed on as it is."""
        body: Any = None
        if self.command == "POST" and self._has_key():
            with contextlib.suppress(ValueError, RecursionError):       # the server says what is wrong with it
                body = json.loads(data)
        if body is None:
            yield None
            return
        with self.server.cache.question(self.path.partition("?")[0], body,
                                        functools.partial(_has_gone, self.connection)) as question:
            if question.reused.skipped:
                self._tell(question, {})
            yield None if question.reused.skipped else question

    def _has_key(self) -> bool:
        """Whether the client may have the proxy use its own key. The server answers to other clients as it will."""
        given = (self.headers.get("Authorization") or "").partition("Bearer ")[2] or self.headers.get("X-Api-Key") or ""
        keys = self.server.keys
        return not keys or any([hmac.compare_digest(given.encode(), key.encode()) for key in keys])

    def _asked(self, question: Optional[Question], data: bytes, ends: contextlib.ExitStack) -> tuple:
        """Asks the server. Returns (answer, the first pieces of its body)."""
        while True:
            this = ends.enter_context(contextlib.ExitStack())
            answer = self._ask(question, data, this)
            pieces, first = answer.pieces(), []
            if question is None or not question.reused.loaded_tokens or answer.response.status != 200:
                return answer, pieces
            for piece in pieces:        # until the answer shows that the server has gone on from the slot's KV
                first.append(piece)
                if answer.begun:
                    break
            if not question.outdated():
                return answer, _chained(first, pieces)
            this.close()

    def _ask(self, question: Optional[Question], data: bytes, ends: contextlib.ExitStack) -> _Answer:
        to, own = self.server.to, _own(self.headers)
        if _has_gone(self.connection):
            raise _Gone
        if question is not None:
            data = json.dumps(question.body).encode()
            own |= {"accept-encoding"}      # so that timings can be read
        connection = http.client.HTTPConnection(to.hostname, to.port, timeout=_CONNECT_S)
        ends.callback(connection.close)
        connection.connect()
        server = connection.sock
        server.settimeout(_ANSWER_S)
        ends.enter_context(self.server.watch.over(self.connection, functools.partial(_cut, server)))
        try:
            connection.putrequest(self.command, to.path.rstrip("/") + self.path, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in own:
                    connection.putheader(name, value)
        except (ValueError, http.client.InvalidURL) as error:
            raise _Refused(400, f"the request cannot be handed on: {error}") from None
        if data or self.command in ("POST", "PUT", "PATCH"):
            connection.putheader("Content-Length", str(len(data)))
        connection.putheader("Connection", "close")
        connection.endheaders(data)
        response = connection.getresponse()
        ends.callback(response.close)
        return _Answer(response)

    def _relay(self, answer: _Answer, pieces: Iterator[bytes]) -> None:
        response, own = answer.response, _own(answer.response.headers)
        bare = self.command == "HEAD" or response.status in (204, 304)
        length = response.headers.get("Content-Length") if bare else answer.length
        chunked = not bare and length is None and self.request_version >= "HTTP/1.1"
        self.close_connection |= not bare and length is None and not chunked
        self.send_response_only(response.status, response.reason)
        for name, value in response.getheaders():
            if name.lower() not in own:
                self.send_header(name, value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
        if self.close_connection:
            self.send_header("Connection", "close")
        with self._to_client():
            self.end_headers()
        for piece in pieces:
            with self._to_client():
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        if chunked:
            with self._to_client():
                self.wfile.write(b"0\r\n\r\n")

    @contextlib.contextmanager
    def _to_client(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self.close_connection = True
            raise _Gone from None

    def _failed(self, question: Optional[Question], answer: Optional[_Answer], error: Exception) -> None:
        if question is not None:
            question.lost()
        said = str(error) or repr(error)
        if answer is not None:
            _log.warning("kvtier: %s: the server cut its answer off: %s", self.path, said)
            return
        self.send_error(502, f"{self.server.to.geturl()} does not answer: {said}: start the server that --to names, "
                             "or ask again when it is up")

    def _tell(self, question: Question, timings: Dict[str, Any]) -> None:
        """A line of the log for each prompt."""
        got, path = question.reused, self.path.partition("?")[0]
        if not got.skipped:
            cut = "" if timings else ", its client has gone"
            wrong = f": {got.error}" if got.error else ""
            _log.info("kvtier: %s: %d tokens, %s reused, %d of these loaded, %d blocks stored%s%s", path,
                      got.prompt_tokens, timings.get("cache_n", "?"), got.loaded_tokens, got.stored_blocks, cut, wrong)
        elif path in PATHS:
            _log.info("kvtier: %s: handed on without kvtier: %s", path, got.skipped)

    def send_error(self, code: int, message: Optional[str] = None, explain: Optional[str] = None) -> None:
        """An error of the proxy's own, in the form of the server's."""
        message = message or http.client.responses.get(code, "")
        _log.warning("kvtier: %s: %d %s", getattr(self, "path", "?"), code, message)
        data = json.dumps({"error": {"code": code, "message": message, "type": "kvtier_proxy_error"}}).encode()
        self.close_connection, self.request_version = True, self.protocol_version     # it may not have been read
        self.send_response_only(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        with contextlib.suppress(OSError):
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else data)

    def log_message(self, *_: Any) -> None:
        pass


def _chained(first: List[bytes], pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield from first
    yield from pieces


class Proxy(socketserver.ThreadingTCPServer):
    """Listens at an address, and hands on to the server at the URL `to`, whose SlotCache is `cache`. keys: those of the
    server for which the cache is used; empty: any. serve_forever() serves."""
    daemon_threads = allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, listen: Tuple[str, int], to: str, keys: Sequence[str] = ()) -> None:
        """OSError: nobody can listen there."""
        self.address_family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
        self.to, self.keys, self.watch = urllib.parse.urlsplit(to), keys, _Watch()
        self._room = threading.BoundedSemaphore(_CONNECTIONS)
        super().__init__(listen, _Handler)
        self.cache: SlotCache

    def process_request(self, request: Any, client_address: Any) -> None:
        self._room.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):      # a client that ended in its request
            _log.exception("kvtier: a request of %s", client_address)
