"""A component that says what a test tells it to: the authority for `controller.primary`, speaking the protocol itself.

It runs with the standard library alone (`python -I -S authority.py CONTROL`), takes one order for each line from the
Unix socket CONTROL, and answers each with a line. It never waits for the agent, and notes how long a send took, and
every signal that it gets.
"""

import os
import signal
import socket
import sys
import time

HELLO = f"XCE_HEARTBEAT=1\nCOMPONENT={os.environ.get('XCE_COMPONENT', '')}\nINTERVAL_MS=60000\n"


class Authority:
    """One control connection, and connections to the agent: the newest, and the one before it."""

    def __init__(self, control: str) -> None:
        self._signals: list[int] = []
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
            signal.signal(number, lambda number, _frame: self._signals.append(number))
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._control.connect(control)
        self._path = os.environ["XCE_HEARTBEAT_SOCKET"]
        self._now: socket.socket | None = None
        self._old: socket.socket | None = None
        self._reads = True
        self._longest_ns = 0
        self._full = 0
        """How often the agent's queue took no more."""

    def run(self) -> None:
        """Obey until the control connection ends."""
        with self._control.makefile("r") as orders:
            for order in orders:
                word, _, rest = order.strip().partition(" ")
                self._control.sendall(f"{self._obey(word, rest)}\n".encode())

    def _obey(self, word: str, rest: str) -> str:
        fields = rest.replace(" ", "\n") + "\n"
        match word:
            case "connect":
                return self._connect()
            case "say":
                return self._send(self._now, fields)
            case "timed":
                began_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
                return f"{began_ns} {self._send(self._now, fields)}"
            case "hello":
                return self._send(self._now, HELLO + fields)
            case "late":
                return self._send(self._old, fields)
            case "flood":
                return self._flood(fields)
            case "drop":
                self._drop()
            case "deaf":
                self._reads = not self._reads
            case "report":
                return f"{self._longest_ns} {self._full} {' '.join(map(str, self._signals))}"
        return "ok"

    def _connect(self) -> str:
        """A new connection, while the older one stays as it is."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        began_ns = time.monotonic_ns()
        try:
            made.connect(self._path)
        except OSError as error:
            made.close()
            return str(error)
        finally:
            self._longest_ns = max(self._longest_ns, time.monotonic_ns() - began_ns)
        if self._old is not None:
            self._old.close()
        self._old, self._now = self._now, made
        return "ok"

    def _drop(self) -> None:
        for connection in (self._old, self._now):
            if connection is not None:
                connection.close()
        self._old = self._now = None

    def _flood(self, fields: str) -> str:
        """Say it until the agent's queue is full. It counts as a flood for the agent only if it reads meanwhile."""
        for _ in range(2000):
            if self._send(self._now, fields) == "full":
                break
        return "ok"

    def _send(self, connection: socket.socket | None, fields: str) -> str:
        if connection is None:
            return "no connection"
        began_ns = time.monotonic_ns()
        try:
            connection.send(fields.encode(), socket.MSG_NOSIGNAL)
        except BlockingIOError:
            self._full += 1
            return "full"
        except OSError as error:
            return str(error)
        finally:
            self._longest_ns = max(self._longest_ns, time.monotonic_ns() - began_ns)
        if self._reads:
            self._read(connection)
        return "ok"

    def _read(self, connection: socket.socket) -> None:
        try:
            while connection.recv(65536):
                pass
        except OSError:  # there is nothing more, or it has ended
            return


if __name__ == "__main__":
    Authority(sys.argv[1]).run()
