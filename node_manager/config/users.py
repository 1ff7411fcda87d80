"""Which user the agent must be, so that every component can run as the user its role file names."""

from node_manager.core.spec import NodeSpec

ROOT = "root"


def required_user(spec: NodeSpec) -> str | None:
    """The only user other than root that the agent may have; None: any will do.

    `root` when components need more than one user, or root itself.
    """
    users = {component.user for component in spec.components if component.user is not None}
    match sorted(users):
        case []:
            return None
        case [user]:
            return user
        case _:
            return ROOT


def user_problem(spec: NodeSpec, current_user: str | None, *, is_root: bool) -> str | None:
    """Why an agent of this user cannot run the components, and which user it must have; None when it can.

    An agent that is not root runs every component as itself. Users are compared by name: a look-up could hang.
    `current_user` None: its name is not known. Then each start tells, which compares numbers.
    """
    required = required_user(spec)
    if is_root or current_user is None or required in {None, current_user}:
        return None
    component = next(item for item in spec.components if item.user not in {None, current_user})
    must = "root" if required == ROOT else f"root or {required}"
    return (
        f"cannot run {component.name} as {component.user}: the agent runs as {current_user}, and only root can "
        f"start components as another user; run the agent as {must}"
    )
