"""Bounds of the status API, in one place. Tests inject smaller ones."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much of the agent one client, and all clients together, may use."""

    connections: int = 64
    """Open connections. Each costs a descriptor and some KiB; an operator and a scraper need one each."""
    header_bytes: int = 16 * 1024
    """Request line and header fields, as in most HTTP servers."""
    body_bytes: int = 64 * 1024
    """Request body; the largest sensible one is a few hundred bytes."""
    request_s: float = 10.0
    """From the first byte of a request to its last."""
    idle_s: float = 60.0
    """Between two requests on one connection."""
    write_stall_s: float = 10.0
    """Without progress in sending a response."""
    command_s: float = 30.0
    """Wait for a command to be answered; after that its caller is told that it is accepted and not yet durable."""
    linger_s: float = 2.0
    """After a refusal, time for the peer to read it before its unread request makes the kernel reset the connection."""
    linger_bytes: int = 1024 * 1024
    """How much of a refused request is read and thrown away meanwhile."""
    streams: int = 16
    """Followers of events, all users together."""
    streams_per_user: int = 8
    """Followers of events with the same uid."""
    stream_stall_s: float = 60.0
    """Without progress in sending events: longer than for a response, because somebody may be reading in a pager."""
    stream_check_s: float = 5.0
    """How often a follower that closed its sending half is looked at, to notice when it has gone."""
    stream_buffer_bytes: int = 64 * 1024
    """Events rendered ahead for one follower; what it does not read stays in the history, not in its buffer."""
    commands: int = 256
    """Commands that wait for their answer, those whose caller has gone included."""


EVENTS_BATCH = 100
"""Events rendered in one turn of the loop, so that a long history does not delay supervision."""
EVENTS_MAX = 1000
"""Largest `limit` of one query without `follow`: above the history that the agent keeps for one component."""
ACCEPT_BATCH = 16
"""Connections accepted in one turn of the loop."""
ACCEPT_RETRY_S = 1.0
"""Pause after the process or the system ran out of descriptors or memory."""
LISTEN_BACKLOG = 128
"""Connections that the kernel holds until they are accepted."""
RECEIVE_BYTES = 16 * 1024
"""Most that is read at once from one connection."""
MAX_DEADLINE_S = 30 * 24 * 3600
"""Longest drain deadline: far above the longest job that a host is drained for."""
MAX_REASON_LENGTH = 512
"""Longest reason, in characters: it is kept in the durable record and shown in a table."""
MAX_JSON_DEPTH = 4
"""Nesting of a request body; every body here is one flat object."""
