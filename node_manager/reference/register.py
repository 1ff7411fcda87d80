"""The host register: which hosts belong to the cluster, in which state, and who says so.

A host is a name *and* an instance: a name that returns with another instance id is a new host. Every change gives the
host a higher epoch. Whoever restricted a host releases it: what the host itself reported (an operator there) is
released by a rejoin that carries `released_epoch`, the epoch that the host's agent says an operator released; what
the cluster's administrator ordered is released by the administrator alone.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from node_manager.reference.settings import MAX_COUNT, MAX_NAME, MAX_SLOTS

MAX_HOSTS = 256
"""A reference cluster; beyond it a join is refused, and nothing that is known is forgotten."""

HostState = Literal["active", "draining", "drained", "decommissioned"]
Origin = Literal["administrator", "host"]
STATES: tuple[HostState, ...] = ("active", "draining", "drained", "decommissioned")
ORIGINS: tuple[Origin, ...] = ("administrator", "host")


class Refused(Exception):  # noqa: N818 -- an answer, not a fault
    """A rule of the register forbids it. `code` is for programs, `record` the host's entry where there is one."""

    def __init__(self, code: str, sentence: str, record: "HostRecord | None" = None) -> None:
        super().__init__(sentence)
        self.code = code
        self.record = record


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRecord:
    """One host. Wall-clock nanoseconds, because it outlives boots and is read on other hosts."""

    host: str
    instance_id: str
    state: HostState
    epoch: int
    by: Origin
    reason: str
    changed_wall_ns: int
    seen_wall_ns: int
    slots: int
    deadline_wall_ns: int | None = None
    report_epoch: int | None = None
    """Epoch before the restriction that the host itself reported; None: the administrator's."""


class Register:
    """All hosts, by (name, instance id)."""

    def __init__(self, records: Iterable[HostRecord] = ()) -> None:
        self._records = {(record.host, record.instance_id): record for record in records}

    def all(self) -> tuple[HostRecord, ...]:
        """Every entry, by name."""
        return tuple(sorted(self._records.values(), key=lambda record: (record.host, record.instance_id)))

    def get(self, host: str, instance_id: str) -> HostRecord | None:
        """Exactly this instance."""
        return self._records.get((host, instance_id))

    def find(self, host: str) -> HostRecord:
        """The instance of this name that was seen last. Raises Refused."""
        named = [record for record in self._records.values() if record.host == host]
        if not named:
            raise Refused("unknown-host", f"cannot find host {host!r}: no such host has joined")
        return max(named, key=lambda record: record.seen_wall_ns)

    def put(self, record: HostRecord) -> HostRecord:
        """Store an entry as it is (also to take a change back)."""
        self._records[record.host, record.instance_id] = record
        return record

    def seen(self, record: HostRecord, now_ns: int) -> HostRecord:
        """The host has spoken: no change of its state."""
        return self.put(replace(record, seen_wall_ns=now_ns))

    # --- what the host says ------------------------------------------------------------------------------------

    def join(
        self,
        host: str,
        instance_id: str,
        *,
        slots: int,
        now_ns: int,
        released_epoch: int | None = None,
        known_epoch: int = 0,
    ) -> HostRecord:
        """A worker asks to take part. Raises Refused `decommissioned` with the entry, or `full`.

        `known_epoch` is the highest the worker was told: a register that was restored from an older copy, or lost,
        goes on above it, because the host would not believe a lower one.
        """
        record = self.get(host, instance_id)
        if record is None:
            if len(self._records) >= MAX_HOSTS:
                raise Refused("full", f"cannot take host {host!r}: the register holds {MAX_HOSTS} hosts")
            return self.put(
                HostRecord(
                    host=host,
                    instance_id=instance_id,
                    state="active",
                    epoch=max(released_epoch or 0, known_epoch) + 1,
                    by="administrator",
                    reason="joined",
                    changed_wall_ns=now_ns,
                    seen_wall_ns=now_ns,
                    slots=slots,
                )
            )
        record = self.put(replace(record, slots=slots, seen_wall_ns=now_ns))
        if released_epoch is not None:
            record = self.release(record, released_epoch, now_ns=now_ns)
        if known_epoch > record.epoch:
            record = self._again(record, known_epoch, now_ns)
        if record.state == "decommissioned":
            raise Refused(
                "decommissioned",
                f"cannot let {host!r} rejoin: it was decommissioned at epoch {record.epoch} by the "
                f"{record.by} ({record.reason})",
                record,
            )
        return record

    def release(self, record: HostRecord, released_epoch: int, *, now_ns: int) -> HostRecord:
        """An operator on the host released what is not newer than `released_epoch`.

        Where that does not release the host here, the state is said again with a higher epoch: the host would take
        it for released otherwise.
        """
        if record.state == "active":
            return self._again(record, released_epoch, now_ns) if released_epoch > record.epoch else record
        if record.report_epoch is not None and released_epoch >= record.report_epoch:
            reason = "released on the host itself"
            return self._change(record, "active", by="host", reason=reason, now_ns=now_ns, floor=released_epoch)
        return self._again(record, released_epoch, now_ns) if released_epoch >= record.epoch else record

    def report(
        self, record: HostRecord, state: HostState, *, reason: str, now_ns: int, deadline_wall_ns: int | None = None
    ) -> HostRecord:
        """The host says that it drains, has drained, or was decommissioned by an operator there.

        Returns the entry, unchanged where the report adds nothing: the answer always is what holds now.
        """
        if state == "drained" and record.state == "draining":
            return self._change(
                record, "drained", by=record.by, reason=record.reason, now_ns=now_ns, report_epoch=record.report_epoch
            )
        if state in {"draining", "decommissioned"} and STATES.index(record.state) < STATES.index(state):
            return self._change(
                record,
                state,
                by="host",
                reason=reason,
                now_ns=now_ns,
                deadline_wall_ns=deadline_wall_ns,
                report_epoch=record.epoch,
            )
        return record

    # --- what the administrator says ---------------------------------------------------------------------------

    def order(
        self, record: HostRecord, verb: str, *, reason: str, now_ns: int, deadline_wall_ns: int | None = None
    ) -> HostRecord:
        """drain, undrain, decommission or recommission. Raises Refused; unchanged where it holds already."""
        if record.state == "decommissioned" and verb in {"drain", "undrain"}:
            raise Refused("decommissioned", f"cannot {verb} {record.host!r}: it is decommissioned; recommission it")
        match verb:
            case "drain" if record.state != "drained":
                return self._change(record, "draining", reason=reason, now_ns=now_ns, deadline_wall_ns=deadline_wall_ns)
            case "undrain" if record.state != "active":
                if record.by == "host":
                    raise Refused(
                        "not-yours",
                        f"cannot undrain {record.host!r}: an operator drains it on the host itself; "
                        "use xce-nodectl undrain there",
                    )
                return self._change(record, "active", reason=reason, now_ns=now_ns)
            case "decommission" if (record.state, record.by) != ("decommissioned", "administrator"):
                return self._change(record, "decommissioned", reason=reason, now_ns=now_ns)
            case "recommission" if record.state == "decommissioned":
                return self._change(record, "active", reason=reason, now_ns=now_ns)
            case "drain" | "undrain" | "decommission" | "recommission":
                return record
            case _:
                raise Refused("bad-request", f"cannot {verb} a host: there is no such order")

    def _again(self, record: HostRecord, above: int, now_ns: int) -> HostRecord:
        """The same state, said again under an epoch above one that the host knows."""
        return self.put(replace(record, epoch=max(record.epoch, above) + 1, changed_wall_ns=now_ns))

    def _change(
        self,
        record: HostRecord,
        state: HostState,
        *,
        by: Origin = "administrator",
        reason: str,
        now_ns: int,
        deadline_wall_ns: int | None = None,
        report_epoch: int | None = None,
        floor: int = 0,
    ) -> HostRecord:
        return self.put(
            replace(
                record,
                state=state,
                epoch=max(record.epoch, floor) + 1,
                by=by,
                reason=reason,
                changed_wall_ns=now_ns,
                deadline_wall_ns=deadline_wall_ns,
                report_epoch=report_epoch,
            )
        )


def host_to_json(record: HostRecord) -> dict[str, Any]:
    """An entry as it is kept and listed."""
    return asdict(record)


def host_from_json(value: Any) -> HostRecord:
    """An entry of the register's file. Raises ValueError where it is not exactly one."""
    if not isinstance(value, dict) or set(value) != set(HostRecord.__slots__):
        raise ValueError("a host entry has the wrong fields")
    texts = ("host", "instance_id", "reason")
    counts = ("epoch", "changed_wall_ns", "seen_wall_ns", "slots")
    optional = ("deadline_wall_ns", "report_epoch")
    if (
        any(not isinstance(value[key], str) for key in texts)
        or any(type(value[key]) is not int or value[key] < 0 for key in counts)
        or any(value[key] is not None and type(value[key]) is not int for key in optional)
        or value["state"] not in STATES
        or value["by"] not in ORIGINS
        or len(value["host"]) > MAX_NAME
        or value["epoch"] > MAX_COUNT
        or value["slots"] > MAX_SLOTS
    ):
        raise ValueError(f"the entry of host {value['host']!r} is not valid")
    return HostRecord(**value)
