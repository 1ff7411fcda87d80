"""The durable facts `facts.json`: what survives the agent, a reboot and a full disk.

A record is one line of JSON, `{"sha256": "...", "record": {"version", "seq", "facts"}}`, padded with spaces. `seq`
counts up with every write. Two files hold the two latest records, the *primary* `facts.json` and the *spare*
`facts.json.spare`, both written in full in advance, so that a write needs no new block of the disk:

0. the directory is made durable, where it is not known to be: an agent may have been killed between 3 and 4, or its
   step 4 have failed. Then the names may still be exchanged on the disk, and the spare be the primary there
1. the spare is overwritten in place          killed here: the primary is whole; the spare is torn or whole
2. the spare is made durable (fsync)          killed here: both are whole, the spare is newer
3. the two names are exchanged (renameat2)    killed here: both are whole, the primary is newer
4. the directory is made durable (fsync)      the write is acknowledged only now

`load` takes the whole record with the higher `seq`, so a kill at any point leaves the earlier or the new facts,
never none; and what was acknowledged is always found. What is found is made durable before anybody relies on it.
Where the file system cannot exchange names, step 3 renames the spare over the primary, and a new spare is made for
the next write, which then needs room. The very first record goes to a temporary file that is renamed: until then
there is nothing to lose. No spare is made before the name of the primary is durable, so a spare alone, even a blank
one, is no trace of a kill or a power cut: a record was there.

A *primary* that is damaged or gone cannot come from a kill: then the facts of the spare, if whole, are used, and the
sentence `unreadable` says that a later one may be lost. A file system that writes every overwrite elsewhere (btrfs)
needs room all the same; there a full disk means FactsWriteFailed, which is retried and shown.

`version` names the exact fields of the facts: a record with a field more or less than its version has is damaged, so
a latch is never read without its restriction. Whoever changes a field of `DurableFacts`, or of what it holds, counts
`_VERSION` up and adds to `_READERS` how a record of the old version becomes the new facts; else the first start after
an upgrade finds every latch unreadable.
"""

import errno
import hashlib
import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node_manager.config.codec import decode_facts, encode_facts
from node_manager.core.durable import DurableFacts
from node_manager.runtime import files, kernel
from node_manager.runtime.disk import LOCAL, Disk, sync_directory, write_all

MAX_FACTS_BYTES = 4 * 1024 * 1024
"""Bound on what is read and written: MAX_HOLDS holds with long reasons fit."""
_SLOT_BYTES = 16 * 1024
"""Slots are multiples of this, a multiple of every usual block size."""
_SPARE_ROOM_BYTES = 8 * 1024
"""Room that a slot keeps beyond its record, so that a full disk still takes a few more latches and holds."""
_VERSION = 1
_READERS: dict[int, Callable[[Any], DurableFacts]] = {1: decode_facts}
"""How the facts of each version that was ever written are read; each raises ValueError."""
_PREFIX = b'{"sha256": "'
_MIDDLE = b'", "record": '
_DIGEST_CHARS = 64
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_MAX_ASIDE_NAME = 64
_ASIDE = "facts.json.of-"
_NO_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}


class StateDirError(Exception):
    """The state directory is another agent's; the text begins with "cannot" and says what to do."""


def lock(state_dir: Path) -> tuple[int | None, str | None]:
    """Take the state directory for this agent: a descriptor that holds it until it is closed or the process ends.

    Raises StateDirError, which names the agent that has it. A directory that cannot be written must not keep an agent
    from supervising: then there is no descriptor, but a sentence for the log. The descriptor is close-on-exec.
    """
    name = state_dir / "lock"
    try:
        return files.lock(name), None
    except files.LockHeldError as error:
        raise StateDirError(
            f"cannot use the state directory {state_dir}: another node manager (pid {error.holder}) keeps its facts "
            "there; stop it first, or choose another directory with --state-dir"
        ) from error
    except OSError as error:
        return None, (
            f"cannot take the lock {name}: {kernel.explain(error)}; a second agent with this state directory would "
            f"not be noticed; make {state_dir} writable and restart the agent"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What the store holds for one identity.

    `unreadable` is a sentence when something is there that cannot be understood: then "not decommissioned" must not
    be concluded. `note` is for the log: what was found otherwise than a clean stop would leave it.
    """

    facts: DurableFacts
    unreadable: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class _Whole:
    seq: int
    facts: DurableFacts


@dataclass(frozen=True, slots=True)
class _Damaged:
    reason: str
    blank: bool = False


_Slot = _Whole | _Damaged | None
"""What a file holds; None: it is absent."""


class Store:
    """The durable facts of one state directory. `load` once, then `write`; not from two threads at a time."""

    def __init__(self, state_dir: Path, *, disk: Disk = LOCAL) -> None:
        self._dir = state_dir
        self._disk = disk
        self._primary = state_dir / "facts.json"
        self._spare = state_dir / "facts.json.spare"
        self._first = state_dir / "facts.json.new"
        self._identity = ""
        self._seq = 0
        self._failed = False
        """The last write of this store failed: the spare holds nothing that counts."""
        self._names_durable = False
        """The names are on the disk as they are seen. An earlier agent may have been killed before that."""

    def load(self, identity: str) -> Loaded:
        """The facts of this identity. Another one's are kept aside and inherited by nobody. Never raises."""
        self._identity = identity
        primary, spare = self._read(self._primary), self._read(self._spare)
        kept = self._read(self._aside(identity))
        self._seq = max(slot.seq if isinstance(slot, _Whole) else 0 for slot in (primary, spare, kept))
        ours = [s for s in (primary, spare, kept) if isinstance(s, _Whole) and s.facts.identity == identity]
        latest = max(ours, key=lambda slot: slot.seq, default=None)
        facts = latest.facts if latest is not None else DurableFacts(identity=identity)
        note = None
        if isinstance(primary, _Whole) and primary.facts.identity != identity:
            note = self._put_aside(primary.facts.identity, keep_spare=latest is not None and latest is spare)
        elif latest is not None and latest is spare:
            note = f"the last write of {self._primary} was interrupted before its end; it counts"
        elif latest is not None and latest is kept:
            note = f"this host has its earlier identity again; its facts come from {self._aside(identity)}"
        trouble = None if latest is None else self._make_durable(spare=latest is spare)
        note = "; ".join(text for text in (note, trouble) if text) or None
        return Loaded(facts=facts, unreadable=self._doubt(primary, spare, found=latest is not None), note=note)

    def _make_durable(self, *, spare: bool) -> str | None:
        """Let what was read survive a power cut: whoever wrote it may have been killed before that.

        The reader relies on it at once ("decommissioned already"). Returns why that is not so.
        """
        try:
            if spare:
                self._sync_spare()
            self._sync_dir()
        except OSError as error:
            return f"cannot make what was read of {self._primary} durable: {kernel.explain(error)}"
        return None

    def _doubt(self, primary: "_Slot", spare: "_Slot", *, found: bool) -> str | None:
        """Why something later than what was found may be lost: never the trace of a mere kill or power cut."""
        use = "an older record is used" if found else "no other record is there"
        if isinstance(primary, _Damaged):
            return f"cannot use {self._primary}: {primary.reason}; {use}"
        if primary is None and isinstance(spare, _Damaged):
            return f"cannot find {self._primary}, nor use {self._spare}: {spare.reason}; {use}"
        if primary is None and spare is not None:
            return f"cannot find {self._primary}, only {self._spare}; {use}"
        return None

    def write(self, facts: DurableFacts) -> None:
        """Make the facts durable; returns when they are. Raises OSError: then the earlier ones still are.

        Blocks for as long as the disk takes.
        """
        primary, spare = self._read(self._primary), self._read_spare()
        seq = 1 + max(self._seq, *(slot.seq for slot in (primary, spare) if isinstance(slot, _Whole)), 0)
        text = _encode(seq, facts)
        if self._must_promote(primary, spare):
            self._sync_spare()
            self._promote()
        self._failed = True
        if primary is None and spare is None:
            self._overwrite(self._first, text)
            self._names_durable = False
            self._disk.rename(self._first, self._primary)
            self._sync_dir()
        else:
            if not self._names_durable:
                self._sync_dir()
            self._overwrite(self._spare, text)
            self._promote()
        self._failed = False
        self._seq = seq
        with suppress(OSError):  # room for the next write; without it that one makes its own, or fails
            self._prepare_spare(len(text))
            with suppress(FileNotFoundError):
                self._disk.unlink(self._aside(facts.identity))  # what it held is in the record now

    def _must_promote(self, primary: "_Slot", spare: "_Slot") -> bool:
        """Whether overwriting the spare would lose the only or the newest record of an agent that was killed.

        A spare of our own failed write is not that: it was never acknowledged and may not be on the disk.
        """
        if not isinstance(spare, _Whole):
            return False
        return not isinstance(primary, _Whole) or (spare.seq > primary.seq and not self._failed)

    def _overwrite(self, path: Path, text: bytes) -> None:
        """Steps 1 and 2."""
        disk = self._disk
        fd = disk.open(path, os.O_RDWR | os.O_CREAT)
        try:
            size = max(disk.size(fd), _slot_size(len(text)))
            try:
                disk.allocate(fd, size)
            except OSError:  # a full disk; the slot may do as it is
                size = max(disk.size(fd), len(text))
            write_all(disk, fd, text.ljust(size))
            disk.sync(fd)
        finally:
            disk.close(fd)

    def _promote(self) -> None:
        """Steps 3 and 4: the spare becomes the primary."""
        self._names_durable = False
        try:
            self._disk.exchange(self._spare, self._primary)
        except FileNotFoundError:
            self._disk.rename(self._spare, self._primary)
        except OSError as error:
            if error.errno not in _NO_EXCHANGE:
                raise
            self._disk.rename(self._spare, self._primary)
        self._sync_dir()

    def _prepare_spare(self, length: int) -> None:
        """Have a spare with all its blocks, where there is none or a smaller one."""
        size = _slot_size(length)
        fd = self._disk.open(self._spare, os.O_RDWR | os.O_CREAT)
        try:
            have = self._disk.size(fd)
            if have >= size:
                return
            write_all(self._disk, fd, b" " * (size - have), have)
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)
        self._sync_dir()

    def _sync_dir(self) -> None:
        sync_directory(self._disk, self._dir)
        self._names_durable = True

    def _sync_spare(self) -> None:
        fd = self._disk.open(self._spare, os.O_RDONLY)
        try:
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)

    def _read(self, path: Path) -> "_Slot":
        """What a slot holds; never raises."""
        try:
            data = files.read(path, MAX_FACTS_BYTES, self._disk)
        except FileNotFoundError:
            return None
        except OSError as error:
            return _Damaged(kernel.explain(error))
        return _decode(data)

    def _read_spare(self) -> "_Slot":
        """What the spare holds; one that was never written, made of spaces, counts as absent."""
        slot = self._read(self._spare)
        return None if isinstance(slot, _Damaged) and slot.blank else slot

    def _aside(self, identity: str) -> Path:
        """Where another identity's record is kept; a digest keeps apart what looks the same made safe."""
        safe = _UNSAFE.sub("_", identity)[:_MAX_ASIDE_NAME]
        digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        return self._dir / f"{_ASIDE}{safe}-{digest}"

    def _put_aside(self, identity: str, *, keep_spare: bool) -> str:
        """Move another identity's record away; one such is kept, the latest."""
        aside = self._aside(identity)
        text = f"{self._primary} belongs to another host, {identity}; it is not used"
        try:
            for name in self._disk.names(self._dir):
                kept = self._read(self._dir / name) if name.startswith(_ASIDE) else None
                if name.startswith(_ASIDE) and (not isinstance(kept, _Whole) or kept.facts.identity != self._identity):
                    self._disk.unlink(self._dir / name)
            # In neither order is there an instant, or after a power cut a directory, with a spare and no primary.
            if keep_spare:
                self._disk.link(self._primary, aside)
                self._sync_dir()
                self._disk.rename(self._spare, self._primary)
            else:
                with suppress(FileNotFoundError):
                    self._disk.unlink(self._spare)
                self._sync_dir()
                self._disk.rename(self._primary, aside)
            self._sync_dir()
        except OSError as error:
            return f"{text}, and could not be moved to {aside}: {kernel.explain(error)}"
        return f"{text}, and kept as {aside}"


def _slot_size(length: int) -> int:
    return -(-(length + _SPARE_ROOM_BYTES) // _SLOT_BYTES) * _SLOT_BYTES


def _encode(seq: int, facts: DurableFacts) -> bytes:
    record = json.dumps({"version": _VERSION, "seq": seq, "facts": encode_facts(facts)}).encode()
    text = _PREFIX + hashlib.sha256(record).hexdigest().encode() + _MIDDLE + record + b"}\n"
    if len(text) > MAX_FACTS_BYTES:
        raise OSError(errno.EFBIG, f"the facts are larger than {MAX_FACTS_BYTES} bytes")
    return text


def _decode(data: bytes) -> _Slot:
    text = data.rstrip(b" \n")
    start = len(_PREFIX) + _DIGEST_CHARS + len(_MIDDLE)
    digest = text[len(_PREFIX) : len(_PREFIX) + _DIGEST_CHARS]
    record = text[start:-1]
    if not text:
        return _Damaged("it is empty", blank=True)
    framed = text.startswith(_PREFIX) and text[start - len(_MIDDLE) : start] == _MIDDLE and text.endswith(b"}")
    if not framed:
        return _Damaged("it is not a record of ours, or only a part of one")
    if hashlib.sha256(record).hexdigest().encode() != digest:
        return _Damaged("its checksum is wrong")
    try:
        body: Any = json.loads(record)
        if not isinstance(body, dict) or type(body.get("version")) is not int or type(body.get("seq")) is not int:
            return _Damaged("it has a format that this version does not know")
        reader = _READERS.get(body["version"])
        if reader is None:
            return _Damaged(f"it has version {body['version']}, which this program does not know")
        return _Whole(body["seq"], reader(body.get("facts")))
    except (ValueError, RecursionError) as error:
        return _Damaged(f"its facts cannot be understood ({error})")
