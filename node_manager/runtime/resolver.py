"""Host names of probes, looked up beside the loop: a resolver that hangs stalls nothing but name lookups."""

import asyncio
import ipaddress
import queue
import socket
import threading
from collections.abc import Callable

_MAX_WAITING = 64
"""Lookups in the queue; what comes on top is answered at once as not possible."""
_LOCALHOST = ("127.0.0.1", "::1")
Answer = Callable[[tuple[str, ...], str], None]
"""Gets the addresses, or none and a sentence."""


def literal_addresses(host: str) -> tuple[str, ...]:
    """The addresses of a host that needs no lookup; none for a name."""
    if host == "localhost":
        return _LOCALHOST
    try:
        return (str(ipaddress.ip_address(host)),)
    except ValueError:
        return ()


class Resolver:
    """One thread, made at the first name. Answers come back to the loop, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._questions: queue.Queue[tuple[str, Answer] | None] = queue.Queue(_MAX_WAITING)
        self._thread: threading.Thread | None = None

    def resolve(self, host: str, answer: Answer) -> None:
        """Look a name up. `answer` is called from the loop, unless the resolver is closed before."""
        if self._thread is None:
            # A daemon: getaddrinfo(3) cannot be interrupted and must not keep the agent from ending.
            self._thread = threading.Thread(target=self._run, name="xce-resolver", daemon=True)
            self._thread.start()
        try:
            self._questions.put_nowait((host, answer))
        except queue.Full:
            self._loop.call_soon(answer, (), f"cannot look {host} up: too many lookups wait for the resolver")

    def close(self) -> None:
        """End the thread when its present lookup is over; no answer follows."""
        if self._thread is None:
            return
        while True:
            try:
                self._questions.put_nowait(None)
                return
            except queue.Full:
                try:
                    self._questions.get_nowait()
                except queue.Empty:
                    continue

    def _run(self) -> None:
        while (question := self._questions.get()) is not None:
            host, answer = question
            addresses: tuple[str, ...] = ()
            text = ""
            try:
                found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
                addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in found))
            except (OSError, UnicodeError) as error:
                text = f"cannot look {host} up: {error}"
            try:
                self._loop.call_soon_threadsafe(answer, addresses, text)
            except RuntimeError:
                return  # the loop is closed
