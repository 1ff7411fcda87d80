"""What each measured figure is called on a page, and what is aimed at."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """`better` is "less" or "more"."""

    title: str
    better: str = "less"


METRICS = {
    "start_ms": Metric("start to all running, ms"),
    "pss_mib": Metric("memory, PSS, MiB"),
    "uss_mib": Metric("memory, USS, MiB"),
    "idle_cpu_percent": Metric("idle, % of a core"),
    "idle_wakeups_per_s": Metric("idle, wake-ups per second"),
    "restart_ms": Metric("crash to restart, ms"),
    "status_command_ms": Metric("status by command, ms"),
    "status_kept_ms": Metric("status by a kept connection, ms"),
    "mass_crash_ms": Metric("crash of all at once to all running, ms"),
    "adoption_ms": Metric("kill -9 of the agent: exec of the next to all in charge, ms"),
    "change_ms": Metric("configuration change that touches one, ms"),
    "stop_ms": Metric("stop of all and itself, ms"),
    "storm_status_ms": Metric("status while all crash-loop, ms"),
    "storm_queries_per_s": Metric("status queries answered per second, 1,000 asked", "more"),
    "storm_restart_ms": Metric("crash to restart while all crash-loop, ms"),
    "primary_to_exec_ms": Metric("leadership: primary to the scheduler's exec, ms"),
    "standby_to_sigterm_ms": Metric("leadership: standby to the scheduler's SIGTERM, ms"),
}
"""In the order in which a page shows them."""


@dataclass(frozen=True, slots=True)
class Aim:
    """Our `figure` (median or p99) is at most `factor` times that of `peer`; without a peer, at most `factor`."""

    metric: str
    count: int
    factor: float
    peer: str | None = None
    figure: str = "median"


AIMS = (
    Aim("restart_ms", 1, 1.3, "floor-asyncio-popen"),
    Aim("restart_ms", 1, 2.0, "floor-asyncio-popen", "p99"),
    Aim("restart_ms", 1, 1.0, "runit"),
    Aim("restart_ms", 100, 1.3, "floor-asyncio-popen"),
    Aim("pss_mib", 1, 1.2, "supervisord"),
    Aim("idle_cpu_percent", 100, 0.02),
    Aim("idle_wakeups_per_s", 100, 1.0),
    Aim("start_ms", 100, 1.5, "floor-asyncio-popen"),
    Aim("start_ms", 500, 1.0, "s6"),
    Aim("status_command_ms", 100, 40.0),
    Aim("status_kept_ms", 100, 1.0),
    Aim("status_kept_ms", 100, 3.0, None, "p99"),
    Aim("stop_ms", 100, 60.0),
    Aim("mass_crash_ms", 100, 80.0),
    Aim("primary_to_exec_ms", 2, 2.0),
    Aim("primary_to_exec_ms", 2, 5.0, None, "p99"),
    Aim("standby_to_sigterm_ms", 2, 1.0),
    Aim("standby_to_sigterm_ms", 2, 5.0, None, "p99"),
)
"""The absolute ones are for an idle machine of two cores."""
