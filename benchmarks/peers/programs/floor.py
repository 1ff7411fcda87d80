"""What the barest supervisor in Python costs: `floor.py spawn|popen COUNT NAME_FORMAT PROBE LOG [ARGUMENT...]`.

asyncio, a pidfd for each child, and a start right after each end, by os.posix_spawn or by subprocess.Popen.
"""

import asyncio
import os
import signal
import subprocess
import sys


async def main(how: str, count: int, name_format: str, command: list[str]) -> None:
    """Keep all of them running until SIGTERM; then end them."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    pids: dict[str, int] = {}
    stopping = False

    def start(name: str) -> None:
        arguments = [*command[:2], name, *command[2:]]
        child: subprocess.Popen[bytes] | None = None
        if how == "spawn":
            pid = os.posix_spawn(arguments[0], arguments, os.environ)
        else:
            child = subprocess.Popen(arguments, start_new_session=True, stdin=subprocess.DEVNULL)
            pid = child.pid
        pidfd = os.pidfd_open(pid)
        pids[name] = pid
        loop.add_reader(pidfd, ended, name, pidfd, child)

    def ended(name: str, pidfd: int, child: subprocess.Popen[bytes] | None) -> None:
        loop.remove_reader(pidfd)
        if child is None:
            os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
        else:
            child.wait()
        os.close(pidfd)
        del pids[name]
        if not stopping:
            start(name)
        elif not pids:
            done.set()

    def terminate() -> None:
        nonlocal stopping
        stopping = True
        for pid in list(pids.values()):
            os.kill(pid, signal.SIGTERM)

    loop.add_signal_handler(signal.SIGTERM, terminate)
    for index in range(count):
        start(name_format % index)
    await done.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]))
