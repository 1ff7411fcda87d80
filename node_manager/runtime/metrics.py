"""`/metrics`: the node in the Prometheus text format, version 0.0.4."""

from collections.abc import Iterable

from node_manager.core.nodestate import NodeState
from node_manager.core.spec import NS_PER_S
from node_manager.core.status import NodeStatus

Sample = tuple[str, float]


def render(status: NodeStatus, node: NodeState, counters: dict[str, int]) -> str:
    """Return the exposition; `counters` are the agent's own, by name without prefix."""
    now = status["now_ns"]
    components = status["components"]
    lines: list[str] = []

    def family(name: str, kind: str, help_text: str, samples: Iterable[Sample]) -> None:
        lines.append(f"# HELP xce_{name} {help_text}")
        lines.append(f"# TYPE xce_{name} {kind}")
        lines.extend(f"xce_{name}{labels} {value:g}" for labels, value in samples)

    def each(value: str) -> str:
        return f'{{component="{value}"}}'

    family("node_ready", "gauge", "Whether every wanted component is ready.", [("", float(status["node"]["ready"]))])
    family(
        "node_config_ok", "gauge", "Whether the configuration file is right.", [("", float(node.config_error is None))]
    )
    family(
        "host_state",
        "gauge",
        "Where the host stands on its way out of the cluster.",
        [(f'{{state="{status["host"]["state"]}"}}', 1.0)],
    )
    family(
        "component_state",
        "gauge",
        "State of each component.",
        [(f'{{component="{item["name"]}",state="{item["state"]}"}}', 1.0) for item in components],
    )
    family(
        "component_ready",
        "gauge",
        "Whether each component is ready: 1, 0, or -1 where it cannot be told.",
        [(each(item["name"]), -1.0 if item["ready"] is None else float(item["ready"])) for item in components],
    )
    family(
        "component_restarts_total",
        "counter",
        "Starts of each component after its first.",
        [(each(item["name"]), float(item["restarts"])) for item in components],
    )
    family(
        "component_state_seconds",
        "gauge",
        "Time since each component's state changed.",
        [(each(item["name"]), (now - item["since_ns"]) / NS_PER_S) for item in components],
    )
    family(
        "durable_changes_pending",
        "gauge",
        "Changes that are not on the disk yet.",
        [("", float(len(node.writeback.pending)))],
    )
    for name, count in sorted(counters.items()):
        family(f"agent_{name}_total", "counter", "See the status API's documentation.", [("", float(count))])
    return "\n".join(lines) + "\n"
