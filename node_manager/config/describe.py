"""A configuration as text for people: what would be started, in which order, as whom and on which conditions."""

import shlex
import signal
from typing import assert_never

from node_manager.config.users import required_user
from node_manager.core.ordering import start_order
from node_manager.core.spec import (
    NS_PER_S,
    PASSIVE_CHECKS,
    CommandSpec,
    ComponentSpec,
    DrainSpec,
    ExecCheck,
    HeartbeatCheck,
    HttpCheck,
    KillScope,
    NodeSpec,
    NotifyCheck,
    ProbeKind,
    ProbeSpec,
    StopSpec,
    TcpCheck,
)


def describe(spec: NodeSpec) -> str:
    """The plan: the host, the agent's user, then each component in the order of its start. Several lines."""
    host = spec.host
    marks = [f"instance {host.instance_id}"] if host.instance_id else []
    marks += [f"template {host.template}"] if host.template else []
    name = f"{host.name} ({', '.join(marks)})" if marks else host.name
    lines = [
        f"host         {name}",
        f"roles        {', '.join(spec.roles)}",
        f"agent's user {_agent_user(spec)}",
    ]
    if spec.controllers:
        lines.append(f"controllers  {', '.join(spec.controllers)}")
    if spec.host_loss_grace_ns is not None:
        lines.append(f"host loss    after {_seconds(spec.host_loss_grace_ns)}")
    components = {component.name: component for component in spec.components}
    for number, component in enumerate((components[name] for name in start_order(components)), start=1):
        lines += ["", f"{number}. {component.name} (role {component.role})"]
        lines += [f"   {label:<12} {text}" for label, text in _component_lines(component)]
    return "\n".join(lines)


def _agent_user(spec: NodeSpec) -> str:
    match required_user(spec):
        case None:
            return "any"
        case "root":
            return "root"
        case user:
            return f"{user} or root"


def _component_lines(component: ComponentSpec) -> list[tuple[str, str]]:
    lines = [("command", shlex.join(component.command)), ("user", component.user or "that of the agent")]
    if component.pre_start is not None:
        lines.append(("check before", _command(component.pre_start)))
    lines += [
        (label, ", ".join(names))
        for label, names in (
            ("after", component.after),
            ("runs while", component.run_while),
            ("stops when", component.stop_when),
            ("restarts on", component.restart_on_change),
            ("states", component.states),
        )
        if names
    ]
    for kind, probe in (
        (ProbeKind.STARTUP, component.startup),
        (ProbeKind.READINESS, component.readiness),
        (ProbeKind.LIVENESS, component.liveness),
    ):
        if probe is not None:
            lines.append((kind.value, _probe(kind, probe)))
    if component.exit_status:
        meanings = ", ".join(f"{status} means {meaning.value}" for status, meaning in component.exit_status)
        lines.append(("exit status", meanings))
    if component.reload is not None:
        lines.append(("reload", _signal_or_command(component.reload)))
    if component.drain is not None:
        lines.append(("drain", _drain(component.drain)))
    lines.append(("stop", _stop(component.stop)))
    return lines


def _probe(kind: ProbeKind, probe: ProbeSpec) -> str:
    match probe.check:
        case ExecCheck(command=command):
            what = shlex.join(command)
        case TcpCheck(host=host, port=port):
            what = f"tcp {host}:{port}"
        case HttpCheck(socket=str() as socket, path=path):
            what = f"http {path} on {socket}"
        case HttpCheck(host=host, port=port, path=path):
            what = f"http {host}:{port}{path}"
        case HeartbeatCheck():
            what = "heartbeat"
        case NotifyCheck():
            what = "notify"
        case _:
            assert_never(probe.check)
    if kind is ProbeKind.STARTUP:
        bound_ns = probe.initial_delay_ns + probe.period_ns * probe.failure_threshold
        return f"{what} within {_seconds(bound_ns)}, else {probe.on_failure.value}"
    # What a component says arrives when it says it: there is no cadence of ours.
    if not isinstance(probe.check, PASSIVE_CHECKS):
        what += f" every {_seconds(probe.period_ns)}"
    if kind is ProbeKind.READINESS:
        return what
    failures = "when silent" if isinstance(probe.check, PASSIVE_CHECKS) else f"after {probe.failure_threshold} failures"
    return f"{what}, {probe.on_failure.value} {failures}"


def _stop(stop: StopSpec) -> str:
    reach = "everything it started" if stop.kill_scope is KillScope.TREE else "the main process alone"
    return f"{_signal_or_command(stop.signal)}, after {_seconds(stop.timeout_ns)} SIGKILL to {reach}"


def _drain(drain: DrainSpec) -> str:
    how = "directive" if drain.how is None else _signal_or_command(drain.how)
    return f"{how}, at the deadline {drain.on_deadline.value}"


def _signal_or_command(how: int | CommandSpec) -> str:
    if isinstance(how, CommandSpec):
        return _command(how)
    try:
        return signal.Signals(how).name
    except ValueError:
        return f"signal {how}"  # a real-time signal between SIGRTMIN and SIGRTMAX has no name of its own


def _command(command: CommandSpec) -> str:
    return f"{shlex.join(command.command)} (at most {_seconds(command.timeout_ns)})"


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / NS_PER_S:g} s"
