"""Exit statuses and signals as people read them."""

import signal

from node_manager.core.events import ExitStatus


def signal_name(number: int) -> str:
    """The name of a signal, such as SIGTERM for 15; the number where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_exit(status: ExitStatus) -> str:
    """Say it in one clause, such as `exited with status 1` or `killed by SIGSEGV (core dumped)`."""
    if status.signal is not None:
        return f"killed by {signal_name(status.signal)}{' (core dumped)' if status.core_dumped else ''}"
    if status.code is not None:
        return f"exited with status {status.code}"
    return "ended, its status is not known"
