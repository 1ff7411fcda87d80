"""The loop of the reference components: what a turn with the heartbeat leads to."""

from node_manager.heartbeat.client import HeartbeatClient
from node_manager.reference.loop import serve_heartbeat
from tests.unit.reference.conftest import Bench


def test_what_the_agent_says_is_looked_at_before_the_next_wait(bench: Bench) -> None:
    """A word that came while the heartbeat was serviced wakes nobody later: its descriptor is ready no more."""
    agent = bench.agent()
    client = HeartbeatClient("c", str(agent.path))
    assert serve_heartbeat(client), "the hello went out"
    assert not serve_heartbeat(client)
    agent.pump()
    assert serve_heartbeat(client), "it was answered"
    assert client.connected
    assert not serve_heartbeat(client)
    agent.tell(COMPONENT__scheduler="stopped")
    assert serve_heartbeat(client)
    assert client.agent.components == {"scheduler": "stopped"}
    client.set_ready(True)
    assert serve_heartbeat(client), "all that was stated has gone out"
    assert not serve_heartbeat(client)
    client.close()
