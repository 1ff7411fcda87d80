"""From an action to a child: what may hang is done in a thread, and not again on the loop."""

from contextlib import ExitStack
from pathlib import Path

from node_manager.core.actions import Spawn
from node_manager.core.events import Spawned
from node_manager.core.spec import ComponentSpec
from node_manager.runtime.children import Children
from tests.unit.runtime.hung import hung_directory
from tests.unit.runtime.rig import Rig, shell


def test_an_environment_file_is_not_read_on_the_loop(rig: Rig, tmp_path: Path) -> None:
    """Its file system dies between the thread's reading and the start: the loop does not notice."""
    place = tmp_path / "remote"
    place.mkdir()
    (place / "environment").write_text("A=from the file\n")
    spec = rig.spec(shell("echo $A; exec sleep 1000"), environment_file=str(place / "environment"))
    with ExitStack() as mounts:

        def listen(_spec: ComponentSpec, _generation: int) -> None:
            mounts.enter_context(hung_directory(place))

        children = Children(
            rig.loop,
            rig.processes,
            log_dir=None,
            listen=listen,
            spawned=lambda _action: None,
            post=rig.events.append,
            jitter=lambda: 0,
        )
        children.carry_out(Spawn(component="comp", generation=1, spec=spec))
        rig.wait_for(Spawned)
        children.close()
    assert rig.lines(1) == ["from the file"]
