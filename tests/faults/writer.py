"""A program for `test_durable`: writes durable facts twice, then once more between two calls that mark the place.

Its argument is the state directory. It prints what was acknowledged.
"""

import os
import sys
from pathlib import Path

from node_manager.core.durable import DurableFacts
from node_manager.runtime.store import Store

FIRST, SECOND, LAST = 1, 2, 99


def facts(epoch: int) -> DurableFacts:
    """Return facts that can be told from others."""
    return DurableFacts(identity="me", epoch_seen=epoch)


def main() -> None:
    """See the module."""
    store = Store(Path(sys.argv[1]))
    store.load("me")
    for epoch in (FIRST, SECOND):
        store.write(facts(epoch))
    print(SECOND, flush=True)  # noqa: T201 - the answer
    os.getsid(0)
    try:
        store.write(facts(LAST))
    except OSError as error:
        print(error, flush=True)  # noqa: T201 - the answer
        return
    os.getsid(0)
    print(LAST, flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
