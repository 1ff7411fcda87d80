"""Host names of probes, looked up beside the loop: a resolver that hangs stalls nothing but lookups of that name."""

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from functools import partial

from node_manager.runtime.crew import Crew

MAX_THREADS = 4
"""Lookups at once: getaddrinfo(3) cannot be interrupted, and one dead name server must not hold up every name."""
MAX_WAITING = 64
"""Names that wait for a thread; what comes on top is answered at once as not possible."""
MAX_ADDRESSES = 8
"""Addresses of one name that are tried: a name server may send thousands."""
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


def look_up(host: str) -> tuple[tuple[str, ...], str]:
    """The addresses of a name, or none and a sentence. Blocks."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return (), f"cannot look {host} up: {error}"
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))[:MAX_ADDRESSES], ""


class Resolver:
    """Looks names up, each once at a time however many ask for it. Answers come from the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        look: Callable[[str], tuple[tuple[str, ...], str]] = look_up,
    ) -> None:
        self._loop = loop
        self._look = look
        self._crew = Crew(loop, "xce-resolver", size=MAX_THREADS, max_waiting=MAX_WAITING)
        self._asked: dict[str, list[Answer]] = {}

    def resolve(self, host: str, answer: Answer) -> None:
        """Look a name up. `answer` is called from the loop, unless it is forgotten or the resolver closed before."""
        if host in self._asked:
            self._asked[host].append(answer)
        elif self._crew.do(partial(self._look, host), partial(self._found, host)):
            self._asked[host] = [answer]
        else:
            self._loop.call_soon(answer, (), f"cannot look {host} up: too many lookups wait for the resolver")

    def forget(self, host: str, answer: Answer) -> None:
        """Nobody waits for this answer any more; a lookup that hangs must not collect them."""
        if answer in self._asked.get(host, ()):
            self._asked[host].remove(answer)

    def close(self) -> None:
        """End: no answer follows."""
        self._crew.close()
        self._asked.clear()

    def _found(self, host: str, found: tuple[tuple[str, ...], str]) -> None:
        for answer in self._asked.pop(host, ()):
            answer(*found)
