"""Status queries over one kept connection: `asker.py KIND PLACE NAMES QUERIES RATE SECONDS` prints JSON.

KIND is xce, supervisord, circus, files (runit, s6), monit or systemd; PLACE its socket or directory; NAMES the
components, with commas; RATE queries a second, 0: each right after the other; no more are sent after SECONDS. A query
asks for the status of all. One that is late is sent at once; its latency is counted from when it is sent. Runs in the
interpreter that has the supervisor's own client library. `latencies_ms` is each query's, `duration_s` from
the first to the last.
"""

import base64
import ctypes
import http.client
import json
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

Query = Callable[[], object]


def xce(place: str, _names: list[str]) -> Query:
    """HTTP/1.1 on the status socket, the connection kept."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(place)
    request = b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def query() -> object:
        sock.sendall(request)
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += _more(sock)
        head = data[:end].lower()
        if not head.startswith(b"http/1.1 200"):
            raise RuntimeError(head.decode())
        length = int(head.partition(b"content-length:")[2].split()[0])
        parts, left = [data[end + 4 :]], length - (len(data) - end - 4)
        while left > 0:
            parts.append(_more(sock))
            left -= len(parts[-1])
        return b"".join(parts)

    return query


def _more(sock: socket.socket) -> bytes:
    data = sock.recv(1 << 18)
    if not data:
        raise EOFError
    return data


def supervisord(place: str, _names: list[str]) -> Query:
    """XML-RPC, the transport of supervisorctl."""
    import xmlrpc.client

    from supervisor.xmlrpc import SupervisorTransport  # type: ignore[import-not-found, unused-ignore]

    transport = SupervisorTransport(None, None, f"unix://{place}")
    proxy = xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport)
    return proxy.supervisor.getAllProcessInfo


def circus(place: str, _names: list[str]) -> Query:
    """zmq, the client of circusctl."""
    from circus.client import CircusClient  # type: ignore[import-not-found, unused-ignore]

    client = CircusClient(endpoint=f"ipc://{place}", timeout=30)
    return lambda: client.send_message("status")


def files(place: str, names: list[str]) -> Query:
    """A file of each service: runit and s6 have no socket."""

    def query() -> object:
        found = []
        for name in names:
            with Path(place, name, "supervise", "status").open("rb", buffering=0) as file:
                found.append(file.read(64))
        return found

    return query


def monit(place: str, _names: list[str]) -> Query:
    """One HTTP request, one connection: it closes each."""
    credentials = "Basic " + base64.b64encode(b"u:p").decode()

    def query() -> object:
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(place)
        connection.request("GET", "/_status?format=xml", headers={"Authorization": credentials})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        if answer.status != http.client.OK:
            raise RuntimeError(f"monit answers {answer.status}")
        return body

    return query


def systemd(place: str, _names: list[str]) -> Query:
    """sd-bus on the private socket; the reply is not decoded."""
    library = ctypes.CDLL("libsystemd.so.0")
    bus = ctypes.c_void_p()

    def check(result: int) -> None:
        if result < 0:
            raise OSError(-result, "sd-bus")

    check(library.sd_bus_new(ctypes.byref(bus)))
    check(library.sd_bus_set_address(bus, f"unix:path={place}".encode()))
    check(library.sd_bus_start(bus))
    manager = (b"/org/freedesktop/systemd1", b"org.freedesktop.systemd1.Manager", b"ListUnitsByPatterns")

    def query() -> object:
        reply = ctypes.c_void_p()
        which = (b"asas", ctypes.c_int(0), ctypes.c_int(1), b"svc*.service")
        check(library.sd_bus_call_method(bus, None, *manager, None, ctypes.byref(reply), *which))
        library.sd_bus_message_unref(reply)
        return None

    return query


KINDS = {function.__name__: function for function in (xce, supervisord, circus, files, monit, systemd)}


def main() -> None:
    """Ask, and print."""
    kind, place, names, queries, rate, seconds = sys.argv[1:]
    query = KINDS[kind](place, names.split(","))
    query()
    latencies = []
    gap_ns = int(1e9 / float(rate)) if float(rate) else 0
    begun_ns = due_ns = time.perf_counter_ns()
    for _ in range(int(queries)):
        if (early_ns := due_ns - time.perf_counter_ns()) > 0:
            time.sleep(early_ns / 1e9)
        sent_ns = time.perf_counter_ns()
        if sent_ns - begun_ns > float(seconds) * 1e9:
            break
        query()
        latencies.append(round((time.perf_counter_ns() - sent_ns) / 1e6, 4))
        due_ns += gap_ns
    print(json.dumps({"latencies_ms": latencies, "duration_s": (time.perf_counter_ns() - begun_ns) / 1e9}))


if __name__ == "__main__":
    main()
