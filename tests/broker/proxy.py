"""A TCP proxy before a broker: passes, keeps answers back, cuts and refuses, as a bad network does.

It reads no more of Kafka's protocol than the head of a request (size, API key, API version, correlation id)
and of an answer (size, correlation id), so it can keep back the answers to one kind of request while all else
passes. Answers of one connection come in order: behind one that is kept back, the others of its
connection wait. Plain text only; the broker's listener must send its clients here.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

PRODUCE = 0
OFFSET_COMMIT = 8
INIT_PRODUCER_ID = 22
END_TXN = 26
TXN_OFFSET_COMMIT = 28

_REQUEST_HEAD = struct.Struct(">hhi")
_ANSWER_HEAD = struct.Struct(">i")
_SIZE = struct.Struct(">i")


class Proxy:
    """Listens on a free port of loopback from the start; `stand_before` says where it leads.

    Attributes:
        port: where clients come in.
        kept_back: how many answers wait to be released, or were lost while they waited since `withhold`.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.kept_back = 0
        self._target: tuple[str, int] | None = None
        self._changed = threading.Condition()
        self._withheld: Callable[[int], bool] = _nothing
        self._refuses = False
        self._closed = False
        self._seen: Counter[int] = Counter()
        self._connections: set[_Connection] = set()
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def stand_before(self, address: str) -> None:
        """Lead new connections to this broker."""
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))

    def withhold(self, *api_keys: int) -> None:
        """Keep back answers from now on: those to these requests, or all. Requests go through."""
        with self._changed:
            self._withheld = api_keys.__contains__ if api_keys else _everything
            self.kept_back = 0

    def release(self) -> None:
        """Deliver what is kept back, and pass everything from now on."""
        with self._changed:
            self._withheld = _nothing
            self._refuses = False
            self._changed.notify_all()

    def cut(self) -> None:
        """Break every connection now; answers kept back on them are lost. New connections are taken."""
        with self._changed:
            broken = list(self._connections)
        for connection in broken:
            connection.close()

    def refuse(self) -> None:
        """Break every connection and take no new one until `release`."""
        with self._changed:
            self._refuses = True
        self.cut()

    def requests(self, api_key: int) -> int:
        """How many requests of a kind have gone through."""
        with self._changed:
            return self._seen[api_key]

    def close(self) -> None:
        """End it and all its connections."""
        self._closed = True
        self._listener.close()
        self.refuse()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refuses or self._target is None:
                client.close()
                continue
            try:
                broker = socket.create_connection(self._target, timeout=5)
            except OSError:  # the broker is away: the client sees what it would see without us
                client.close()
                continue
            broker.settimeout(None)
            for end in (client, broker):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(self, client, broker)
            with self._changed:
                self._connections.add(connection)
            connection.start()

    def note(self, api_key: int) -> None:
        """A request has gone through."""
        with self._changed:
            self._seen[api_key] += 1

    def wait_for_leave(self, connection: _Connection, api_key: int) -> None:
        """Return when an answer may go on, or its connection has ended."""
        with self._changed:
            if self._withheld(api_key):
                self.kept_back += 1
                self._changed.wait_for(lambda: connection.ended or not self._withheld(api_key))
                self.kept_back -= 0 if connection.ended else 1

    def forget(self, connection: _Connection) -> None:
        """A connection has ended; whoever waits for its answers stops waiting."""
        with self._changed:
            self._connections.discard(connection)
            self._changed.notify_all()


class _Connection:
    """One client's connection and ours to the broker, with a thread for each direction."""

    def __init__(self, proxy: Proxy, client: socket.socket, broker: socket.socket) -> None:
        self.ended = False
        self._proxy = proxy
        self._client = client
        self._broker = broker
        self._asked: dict[int, int] = {}

    def start(self) -> None:
        for pump in (self._pass_requests, self._pass_answers):
            threading.Thread(target=self._until_it_ends, args=(pump,), daemon=True).start()

    def close(self) -> None:
        self.ended = True
        for end in (self._client, self._broker):
            with suppress(OSError):  # the other side may have been quicker
                end.shutdown(socket.SHUT_RDWR)
        self._proxy.forget(self)

    def _until_it_ends(self, pump: Callable[[], None]) -> None:
        # Either side may go at any time; the other one is told by closing.
        with suppress(OSError):
            pump()
        self.close()

    def _pass_requests(self) -> None:
        while (frame := _frame(self._client)) is not None:
            api_key, _, correlation_id = _REQUEST_HEAD.unpack_from(frame, _SIZE.size)
            self._asked[correlation_id] = api_key
            self._broker.sendall(frame)
            self._proxy.note(api_key)

    def _pass_answers(self) -> None:
        while (frame := _frame(self._broker)) is not None:
            (correlation_id,) = _ANSWER_HEAD.unpack_from(frame, _SIZE.size)
            self._proxy.wait_for_leave(self, self._asked.pop(correlation_id))
            if self.ended:
                return
            self._client.sendall(frame)


def _frame(end: socket.socket) -> bytearray | None:
    """The next request or answer with its size; None when the other side has closed."""
    head = _exactly(end, _SIZE.size)
    if head is None:
        return None
    (size,) = _SIZE.unpack(head)
    body = _exactly(end, size)
    return None if body is None else head + body


def _exactly(end: socket.socket, count: int) -> bytearray | None:
    data = bytearray(count)
    view = memoryview(data)
    at = 0
    while at < count:
        came = end.recv_into(view[at:])
        if not came:
            return None
        at += came
    return data


def _nothing(api_key: int) -> bool:
    return False


def _everything(api_key: int) -> bool:
    return True
