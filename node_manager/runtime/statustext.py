"""The status as JSON text, made anew only where something has changed.

Most components of most hosts run, are ready, and go on so for weeks, while somebody asks for the status every second.
What the core says of such a component follows from its frozen state alone, apart from its age: as long as its state is
the very same object its text is kept, and the age put in. Everything else is made for each question.
"""

from collections.abc import Callable
from typing import Any

from node_manager.core.nodestate import Member, NodeState
from node_manager.core.status import component_status, in_order, steady

_UPTIME = b'"uptime_ns":'
_NOTHING = b'"components":[]'


class StatusText:
    """Keeps the texts of one node's components, as `encode` makes them: compact JSON, always the same way."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Member, int, bytes, bytes]] = {}
        """Of a steady component: its state, when it started, and its text before and after its age."""

    def whole(self, frame: dict[str, Any], node: NodeState, now: int, encode: Callable[[Any], bytes]) -> bytes:
        """Return the text of `frame`, whose list of components is empty, with the components of `node` at `now`."""
        kept, self._kept = self._kept, {}
        texts: list[bytes] = []
        for member in in_order(node):
            name = member.spec.name
            known = kept.get(name)
            if known is None or known[0] is not member:
                text = encode(component_status(node, member, now))
                if not steady(member, now):
                    texts.append(text)
                    continue
                known = _parts(member, text)
            self._kept[name] = known
            _, started_ns, before, after = known
            texts.append(b"%b%d%b" % (before, now - started_ns, after))
        # Within a text every quote has a backslash, so that this can be nothing but the key.
        head, found, tail = encode(frame).partition(_NOTHING)
        assert found, "the frame has an empty list of components"
        return b"%b%b%b]%b" % (head, _NOTHING[:-1], b",".join(texts), tail)


def _parts(member: Member, text: bytes) -> tuple[Member, int, bytes, bytes]:
    run = member.state.run
    assert run is not None, "what is steady runs"
    before, key, rest = text.partition(_UPTIME)
    return member, run.started_ns, before + key, rest[rest.index(b",") :]
