"""The name of the user that this process runs as: asked for in a thread, because a directory service may hang."""

import pwd
import threading
from collections.abc import Callable

ANSWER_S = 5.0
"""How long the name is waited for, as long as that of any other user."""


def own_name(
    uid: int, *, ask: Callable[[int], pwd.struct_passwd] = pwd.getpwuid, answer_s: float = ANSWER_S
) -> str | None:
    """Return the name of this user, "" where it has none; None where nobody tells in time."""
    told: list[str] = []

    def look() -> None:
        try:
            told.append(ask(uid).pw_name)
        except KeyError:  # a container's arbitrary uid
            told.append("")

    asker = threading.Thread(target=look, name="xce-own-name", daemon=True)
    try:
        asker.start()
    except RuntimeError:  # the host has no more threads
        look()
    else:
        asker.join(answer_s)
    return told[0] if told else None
