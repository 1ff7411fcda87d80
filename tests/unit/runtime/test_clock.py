import asyncio

import pytest

from node_manager.runtime.clock import BootTimer, boot_id, boottime_ns, machine_id

pytestmark = pytest.mark.usefixtures("no_leaks")
MS = 1_000_000


def test_the_timer_expires_once_and_not_before_its_time() -> None:
    """A deadline in the future comes at or after its instant; arming with None or again replaces it."""

    async def run() -> list[int]:
        loop = asyncio.get_running_loop()
        expired: asyncio.Queue[int] = asyncio.Queue()
        timer = BootTimer(loop, lambda: expired.put_nowait(boottime_ns()))
        seen = []
        late_ns = boottime_ns() + 20 * MS
        timer.arm(boottime_ns() + 3_600_000 * MS)
        timer.arm(late_ns)
        seen.append(await asyncio.wait_for(expired.get(), 30) - late_ns)
        for past_ns in (0, 1, -5):  # a deadline that has passed expires at once
            timer.arm(past_ns)
            seen.append(await asyncio.wait_for(expired.get(), 30))
        timer.arm(boottime_ns())
        timer.arm(None)  # at once takes the deadline back, even one that has come
        timer.arm(2**63)
        timer.arm(boottime_ns() + 10 * MS)
        seen.append(await asyncio.wait_for(expired.get(), 30))
        assert expired.empty()
        timer.close()
        timer.close()
        return seen

    assert all(value >= 0 for value in asyncio.run(run()))


def test_the_same_deadline_can_be_armed_again_after_it_came() -> None:
    """Arming the instant that just expired expires again: no deadline is lost."""

    async def run() -> None:
        expired = asyncio.Event()
        timer = BootTimer(asyncio.get_running_loop(), expired.set)
        at_ns = boottime_ns()
        for _ in range(3):
            timer.arm(at_ns)
            await asyncio.wait_for(expired.wait(), 30)
            expired.clear()
        timer.close()

    asyncio.run(run())


def test_the_boot_and_the_host_have_names() -> None:
    """The boot id is the kernel's; the machine id is 32 digits where there is one."""
    assert len(boot_id()) == 36
    assert boot_id() == boot_id()
    found = machine_id()
    assert found is None or len(found) == 32
