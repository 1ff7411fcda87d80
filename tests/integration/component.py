"""A small component in one file, right but for one flaw: component.py ROLE FLAW [LEASE-FILE].

The kit's tests run it to see that each flaw is found, and found at its point. The flaw `none` has none.
"""

import contextlib
import fcntl
import os
import random
import select
import signal
import socket
import sys
import time
from pathlib import Path

from node_manager.heartbeat.client import boottime_ns
from node_manager.heartbeat.codec import MalformedRecord, decode, encode, part_of

S = 1_000_000_000
INTERVAL_NS = S // 5
FULL_NS = S
LEASE_NS = int(1.5 * S)
KNOWN = ("XCE_", "NODE", "INSTANCE", "BOOT", "ROLES", "FULL", "BEAT", "DRAIN", "UNDRAIN", "EPOCH", "DECOMM", "FACT.",
         "COMPONENT.controller", "COMPONENT.scheduler", "COMPONENT.worker")  # fmt: skip


class Speaker:
    """The connection: levels by groups, what the agent said, and everything that can be wrong with them."""

    def __init__(self, flaw: str) -> None:
        self.flaw = flaw
        self.path = os.environ.get("XCE_HEARTBEAT_SOCKET", "")
        main = os.environ.get("XCE_MAIN_PID") == str(os.getpid())
        self.mute = not self.path or not (main or flaw == "inherited")
        self.levels: dict[str, dict[str, str]] = {"ready": {"READY": "1"}}
        self.dirty: set[str] = set()
        self.known: dict[str, str] = {}
        self.sock: socket.socket | None = None
        self.answered = self.greeted = self.lost = False
        self.beat = self.next_ns = self.full_ns = self.retry_ns = 0
        self.delay_ns = S // 5

    def state(self, group: str, **pairs: str) -> None:
        if self.levels.get(group) != pairs:
            self.levels[group] = pairs
            self.dirty.add(group)

    def turn(self, now: int) -> int:
        """Do what is due; returns when to come again."""
        if self.mute:
            return now + S
        if self.sock is None:
            if now < self.retry_ns or (self.lost and self.flaw == "reconnect"):
                return self.retry_ns
            self._connect(now)
        heard = self._read(now)
        answers = heard and self.flaw == "idle-beats"
        if self.sock is not None and (now >= self.next_ns or self.dirty or answers):
            self._write(now, heard=heard)
        return self.next_ns if self.sock is not None else self.retry_ns

    def _connect(self, now: int) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(self.path)
        except OSError:
            sock.close()
            self._later(now)
            return
        sock.setblocking(self.flaw == "never-blocks")
        self.sock, self.greeted, self.answered = sock, False, False
        self.next_ns = self.full_ns = now
        if self.flaw == "keeps-directives":
            self.known.clear()
        if self.flaw == "speaker" and os.fork() == 0:
            time.sleep(0.5)
            with contextlib.suppress(OSError):
                sock.send(b"BEAT=1\n")
            os._exit(0)

    def _later(self, now: int) -> None:
        self.retry_ns = now + int(self.delay_ns * random.uniform(0.5, 1))  # noqa: S311  it spreads load
        self.delay_ns = min(2 * self.delay_ns, 5 * S)
        if self.flaw == "patience":
            self.retry_ns = now

    def _lose(self, now: int) -> None:
        assert self.sock is not None
        self.sock.close()
        self.sock, self.lost = None, True
        self._later(now)

    def _read(self, now: int) -> bool:
        heard = False
        while self.sock is not None:
            if not select.select([self.sock], [], [], 0)[0]:
                break
            record = b""
            try:
                record = self.sock.recv(8193)
                if not record and self.flaw == "garbage-closes":
                    self._lose(now)
                    break
                fields = decode(record)
                part_of(fields)
                if fields.get("XCE_HEARTBEAT", "1") != "1":
                    raise MalformedRecord("version")  # noqa: TRY301  a small program
            except OSError:
                self._lose(now)
                break
            except MalformedRecord:
                if self.flaw == "garbage" and record:
                    raise
                if self.flaw != "garbage-closes":
                    self._lose(now)
                    break
                continue
            heard = True
            self._take(fields, now)
        return heard

    def _take(self, fields: dict[str, str], now: int) -> None:
        if "XCE_HEARTBEAT" in fields:
            self.answered, self.delay_ns = True, S // 5
        if "FULL" in fields:
            self.known = {}
        self.known |= fields
        if self.flaw == "unknown-keys" and not all(key.startswith(KNOWN) for key in fields):
            self._lose(now)

    def _write(self, now: int, *, heard: bool) -> None:
        hello = not self.greeted
        if self.flaw == "unasked" and not hello and not self.answered:
            self.next_ns = now + INTERVAL_NS
            return
        if self.flaw == "idle-beats" and not hello and not heard and self.answered:
            self.next_ns = now + INTERVAL_NS
            return
        full = now >= self.full_ns and (hello or self.flaw != "full-state")
        pairs: dict[str, str] = {}
        if hello and self.flaw != "hello":
            name = os.environ["XCE_COMPONENT"]
            pairs |= {"XCE_HEARTBEAT": "1", "COMPONENT": name, "INTERVAL_MS": str(INTERVAL_NS // 1_000_000)}
        if not self.greeted and self.flaw == "hello":
            self.flaw = "none"  # says it with the next record
        else:
            self.greeted = True
        pairs["BEAT"] = str(self.beat)
        if self.flaw == "records" and self.beat > 3:
            pairs["JOBS"] = "-1"
        if self.flaw == "statements":
            pairs["HOST_STATE"] = "active"
        for group, levels in self.levels.items():
            if full or group in self.dirty:
                pairs |= levels
        self._send(pairs, now)
        self.beat += 1
        self.dirty.clear()
        self.next_ns = now + INTERVAL_NS * (20 if self.flaw == "promise" else 1)
        if full:
            self.full_ns = now + FULL_NS

    def _send(self, pairs: dict[str, str], now: int) -> None:
        assert self.sock is not None
        try:
            for record in encode(list(pairs.items())):
                self.sock.send(record, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return
        except OSError:
            self._lose(now)


class StoreError(Exception):
    """Nothing is granted, nothing is known."""


class FileLease:
    """A record of holder, term and end; a lock guards its update alone."""

    def __init__(self, path: Path, holder: str) -> None:
        self._path = path
        self._guard = path.with_suffix(".guard").open("a+b")
        self.holder = holder

    def acquire(self, *, may_take: bool = True, end_ns: int | None = None) -> tuple[bool, int, int]:
        """Take or renew it; returns whether it is the caller's, its term and its end. Raises StoreError."""
        now = boottime_ns()
        found = holder, term, until = self._read()
        ours = now < until and holder == self.holder
        if not may_take or (now < until and not ours):
            return False, term, until
        term = term if ours else max(term + 1, now)  # a record that was lost does not set terms back
        until = now + LEASE_NS if end_ns is None else end_ns
        temporary = self._path.with_suffix(f".{self.holder}")
        temporary.write_text(f"{self.holder} {term} {until}\n")
        try:
            fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._read() != found:
                raise StoreError
            temporary.rename(self._path)
        except BlockingIOError as error:
            raise StoreError from error
        finally:
            fcntl.flock(self._guard, fcntl.LOCK_UN)
        return True, term, until

    def _read(self) -> tuple[str, int, int]:
        try:
            holder, term, until = self._path.read_text().split()
            return holder, int(term), int(until)
        except FileNotFoundError:
            return "", 0, 0
        except (OSError, ValueError) as error:
            raise StoreError from error


class LockLease(FileLease):
    """The wrong lease: a lock that is held. It is free at once when its holder dies, never while it stands still."""

    def acquire(self, *, may_take: bool = True, end_ns: int | None = None) -> tuple[bool, int, int]:
        now = boottime_ns()
        try:
            fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False, 0, now
        return may_take, now // LEASE_NS, now + LEASE_NS if end_ns is None else end_ns


class Controller:
    def __init__(self, speaker: Speaker, path: Path) -> None:
        self.speaker, self.flaw = speaker, speaker.flaw
        kind = LockLease if self.flaw in {"kept-at-death", "ends-when-stopped"} else FileLease
        self.lease = kind(path, f"h{os.environ.get('RIVAL', '1')}")
        self.willing = self.flaw != "leads"
        self.read = self.primary = False
        self.term = self.until_ns = self.next_ns = 0
        self.leave_ns: int | None = None
        if self.flaw == "reads-first":
            speaker.state("leadership", LEADERSHIP="standby", TERM="0")

    def turn(self, now: int) -> int:
        if self.leave_ns is not None and now >= self.leave_ns:
            raise SystemExit(0)
        if self.primary and now >= self.until_ns:
            self.primary, self.next_ns = False, now
        if now >= self.next_ns:
            self.next_ns = now + LEASE_NS // 5
            try:
                self.primary, term, until = self.lease.acquire(may_take=self.willing)
                self.read, self.term = True, max(term, self.term)
                self.until_ns = until - LEASE_NS // 500 if self.primary else 0
            except StoreError:
                if self.flaw == "no-blind-renewal" and self.primary:
                    self.until_ns = now + LEASE_NS - LEASE_NS // 500
        if self.read:
            self._say(now)
        return min(self.next_ns, now + INTERVAL_NS)

    def _say(self, now: int) -> None:
        until = self.until_ns + S if self.flaw == "validity" else self.until_ns
        term = 1 if self.flaw == "terms" else self.term
        if self.flaw == "one-leader":
            until = max(until, now + S)
        if self.primary or self.flaw == "one-leader":
            self.speaker.state("leadership", LEADERSHIP="primary", TERM=str(term), VALID_UNTIL_NS=str(until))
        else:
            self.speaker.state("leadership", LEADERSHIP="standby", TERM=str(term))

    def end(self) -> None:
        if self.flaw == "standby-at-the-end":
            raise SystemExit(0)
        if self.primary and self.flaw == "not-given-up-early":
            self.lease.acquire(end_ns=0)
        self.willing = self.primary = False
        self.leave_ns = boottime_ns() + S // 5


class Scheduler:
    def __init__(self, speaker: Speaker) -> None:
        self.speaker, self.flaw = speaker, speaker.flaw
        if "XCE_TERM" not in os.environ and self.flaw != "refuses-without-lease":
            raise SystemExit(78)
        self.term = os.environ.get("XCE_TERM", "1")
        self.until_ns = int(os.environ.get("XCE_LEASE_VALID_UNTIL_NS", str(boottime_ns() + 60 * S)))

    def turn(self, now: int) -> int:
        known, fact = self.speaker.known, "FACT.controller.primary"
        if known.get(fact) == "false" and self.flaw != "heeds-false":
            raise SystemExit(75)
        if known.get(f"{fact}.TERM", self.term) != self.term and self.flaw != "heeds-term":
            raise SystemExit(75)
        if known.get(fact) == "true" and self.flaw != "heeds-renewal":
            self.until_ns = max(self.until_ns, int(known[f"{fact}.VALID_UNTIL_NS"]))
        if now >= self.until_ns and self.flaw not in {"ends-with-lease", "after-a-pause"}:
            raise SystemExit(75)
        if self.flaw == "outlives-the-agent" and self.speaker.lost:
            raise SystemExit(75)
        return now + INTERVAL_NS

    def end(self) -> None:
        raise SystemExit(0)


class Worker:
    def __init__(self, speaker: Speaker) -> None:
        self.speaker, self.flaw = speaker, speaker.flaw

    def turn(self, now: int) -> int:
        known = self.speaker.known
        if known.get("DECOMMISSIONED") == "1" and self.flaw != "obeys-decommission":
            raise SystemExit(79)
        if known.get("DRAIN") == "1" and self.flaw != "obeys-drain":
            self.speaker.state("host", HOST_STATE="drained", EPOCH="0")
        elif self.flaw == "keeps-directives" and "host" in self.speaker.levels:
            self.speaker.state("host", HOST_STATE="active", EPOCH="0")
        return now + INTERVAL_NS

    def end(self) -> None:
        raise SystemExit(0)


def main() -> None:
    role, flaw = sys.argv[1:3]
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    told: list[int] = []
    signal.signal(signal.SIGTERM, signal.SIG_IGN if flaw == "ends" else lambda number, _frame: told.append(number))
    speaker = Speaker(flaw)
    if speaker.mute and not speaker.path and flaw == "runs-alone":
        raise SystemExit(1)
    component: Controller | Scheduler | Worker
    match role:
        case "controller":
            component = Controller(speaker, Path(sys.argv[3]))
        case "scheduler":
            component = Scheduler(speaker)
        case _:
            component = Worker(speaker)
    while True:
        if told:
            told.clear()
            component.end()
        now = boottime_ns()
        if flaw == "after-a-pause":
            speaker.turn(now)  # speaks before it has looked at the clock
        due = component.turn(now)
        due = min(due, speaker.turn(boottime_ns()))
        wait = [reader] if speaker.sock is None else [reader, speaker.sock.fileno()]
        ready, _, _ = select.select(wait, [], [], max(0, due - boottime_ns()) / S)
        if reader in ready:
            os.read(reader, 64)


if __name__ == "__main__":
    main()
