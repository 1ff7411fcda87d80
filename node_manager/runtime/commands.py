"""The commands that a role gives beside the component's own: pre_start, reload, drain, as actions of the core."""

from collections.abc import Callable
from functools import partial

from node_manager.core.actions import CancelPreStart, RunHelper, RunPreStart
from node_manager.core.events import Event, HelperDone, PreStartDone
from node_manager.runtime.helpers import HelperPlan, HelperResult, HelperRun, Helpers


class Commands:
    """Runs them and posts what came of each, exactly once."""

    def __init__(self, helpers: Helpers, *, post: Callable[[Event], None], jitter: Callable[[], int]) -> None:
        self._helpers = helpers
        self._post = post
        self._jitter = jitter
        self._pre_starts: dict[tuple[str, int], HelperRun] = {}

    def run_pre_start(self, action: RunPreStart) -> None:
        """Run the check before a start; what it leaves behind is killed before it counts as done."""
        key = (action.component, action.generation)
        plan = HelperPlan(
            spec=action.spec,
            generation=action.generation,
            command=action.command.command,
            timeout_ns=action.command.timeout_ns,
        )
        self._pre_starts[key] = self._helpers.run(plan, partial(self._pre_start_done, key))

    def cancel_pre_start(self, action: CancelPreStart) -> None:
        """End the running check at once."""
        run = self._pre_starts.get((action.component, action.generation))
        if run is not None:
            run.cancel()

    def run_helper(self, action: RunHelper, main_pid: int | None) -> None:
        """Run a reload or drain command; what it leaves running when it exits may rightly stay."""
        plan = HelperPlan(
            spec=action.spec,
            generation=action.generation,
            command=action.command.command,
            timeout_ns=action.command.timeout_ns,
            main_pid=main_pid,
            clear=False,
        )
        self._helpers.run(plan, partial(self._helper_done, action))

    def _pre_start_done(self, key: tuple[str, int], result: HelperResult) -> None:
        self._pre_starts.pop(key, None)
        component, generation = key
        self._post(
            PreStartDone(
                component=component,
                generation=generation,
                ok=result.ok,
                detail="" if result.ok else result.detail,
                jitter=self._jitter(),
            )
        )

    def _helper_done(self, action: RunHelper, result: HelperResult) -> None:
        self._post(
            HelperDone(
                component=action.component,
                generation=action.generation,
                purpose=action.purpose,
                ok=result.ok,
                detail="" if result.ok else result.detail,
            )
        )
