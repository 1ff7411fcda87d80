"""What one event did to a component, in one line that a table can hold."""

from node_manager.core.actions import Action
from node_manager.core.states import Aim, ComponentState
from tests.unit.core.build import told


def place(state: ComponentState) -> str:
    """The state with the phase of its run and the aim of its stop, where it has them."""
    phase = "" if state.run is None else f" {state.run.phase.value}"
    aim = "" if state.aim is Aim.NONE else f" for {state.aim.value}"
    return f"{state.state.value}{phase}{aim}"


def outcome(before: ComponentState, after: ComponentState, actions: list[Action]) -> str:
    """`=`: nothing changed. `~`: something is remembered. Else the new place, and after a colon what is to be done."""
    if not actions and before == after:
        return "="
    if not actions and place(before) == place(after):
        return "~"
    where = "~" if place(before) == place(after) else place(after)
    return where if not actions else f"{where}: {', '.join(told(actions))}"
