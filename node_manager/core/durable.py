"""What survives the agent and a reboot: latches, epochs and operators' words, as frozen values.

Two latches are kept apart. The *controller's* is stated by the worker and ordered by the controller's epoch for this
host. The *operator's* is set and released by operators alone. The host is in the more severe of the two states.
"""

from node_manager.core.values import dataclass

MAX_HOLDS = 1024
"""Bound on operator holds kept: far above the components of any host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latch:
    """A restriction of this host, and who stated it, when and why.

    `state` is a `HostState` value other than "active". `at_wall_ns` is wall-clock time for people;
    `deadline_ns` is CLOCK_BOOTTIME of the boot `boot_id`, `deadline_wall_ns` the same instant for another boot.
    """

    state: str
    by: str
    reason: str
    at_wall_ns: int
    epoch: int | None = None
    boot_id: str = ""
    deadline_ns: int | None = None
    deadline_wall_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """An operator's stop of one component."""

    component: str
    by: str
    reason: str
    at_wall_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """An operator's word that nothing is to be started or killed by itself for now."""

    by: str
    reason: str
    at_wall_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableFacts:
    """The whole durable record. `identity` is the instance it belongs to; another one inherits nothing."""

    identity: str = ""
    epoch_seen: int = 0
    """Highest epoch that the controller stated for this host."""
    released_epoch: int = 0
    """Highest epoch that an operator released: only a higher one latches again."""
    controller_latch: Latch | None = None
    operator_latch: Latch | None = None
    holds: tuple[Hold, ...] = ()
    maintenance: Maintenance | None = None
    doubt: str | None = None
    """Why it is not known whether this host is decommissioned (an unreadable file); holds until an operator decides."""
