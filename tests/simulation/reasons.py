"""The invariants: each with its name and the reason why it must hold."""

REASONS = {
    # --- two schedulers -------------------------------------------------------------------------------------------
    "one scheduler": "two schedulers at once corrupt the schedule",
    "fuse first": "a leased component's fuse has acknowledged its deadline before the component is started",
    "last look": "what stood still between decision and exec does not start when there is no time left to stop it",
    "agent before fuse": "the fuse is for an agent that cannot act: one that runs has sent SIGKILL in time by itself",
    "terms": "nothing is started, or kept, under a term older than one that was known here: its writes are refused",
    # --- what ran and what was forbidden --------------------------------------------------------------------------
    "latch holds": "a durably acknowledged decommission is never followed by a start of the worker",
    "exit 79 latches": "a worker that was refused under an epoch does not come back after a reboot",
    "latches apart": "only an operator releases an operator's latch, and only a higher epoch the controller's",
    "controller's word": "what is latched under an epoch is what the controllers decided under it, or its completion",
    "inherits nothing": "a name that returns with another instance id is another host",
    "drained means empty": "a host is concluded to be drained when no job is left on it",
    "last word": "an operator's last acknowledged word holds",
    "final exit": "what ended with a status that its role file calls final is started by an operator's word alone",
    "unwanted start": "what the agent does not want any more is not started by a child that it forgot",
    # --- whom it touches ------------------------------------------------------------------------------------------
    "only ours": "no signal goes to a process that is not of that component and generation",
    "jobs untouched": "a worker's restart signals no user's job",
    "controller undisturbed": "what is only reported when silent is not ended for it: that gives its lease away",
    "maintenance spares": "in maintenance nothing is killed by itself",
    "patience": "nobody is killed for a silence that the agent could not hear, nor before three intervals are over",
    "takes over quietly": "an agent that replaces its program ends nothing that was to go on",
    # --- one of each ----------------------------------------------------------------------------------------------
    "one main process": "two copies of a component fight over its port and its state",
    "no start over a tree": "a component is not started while its former tree lives (kill scope tree)",
    "reverse order": "what others depend on is stopped after them: a scheduler without its controller loses its lease",
    "configuration holds": "what runs is what the configuration says, of this very host, and nothing else",
    "older generations": "an event of an older generation changes nothing",
    # --- nothing is stuck, everything is bounded ------------------------------------------------------------------
    "stops end": "a stop comes to SIGKILL within its bound",
    "nothing hangs on": "what hangs is ended and started again, also where it hangs since before this agent",
    "silence ends": "what has been silent for three intervals is taken for hung at once, not some time later",
    "backoff forgets": "what had run well comes back at once; only what fails again and again waits",
    "bounded": "queues, histories, pending writes and restarts per minute have a bound",
    "writes are repeated": "what is not durable is being written, or there is a time at which it will be",
    "timer": "after a turn the next wake lies in the future, or something is due that will be done",
    "settled": "when the faults have ceased, every host shows what its facts call for",
    "scheduler runs": "when the faults have ceased, exactly one scheduler runs",
    # --- what it says ---------------------------------------------------------------------------------------------
    "ledger explains": "the rule that status shows is the strongest one that holds",
    "status is honest": "what is shown as ready or running has a main process, and what hangs is not shown as ready",
    # --- the core itself ------------------------------------------------------------------------------------------
    "machine consistent": "the core's own invariants",
    "identical": "identical histories give identical actions",
    "needless write": "a write of durable facts changes something",
}


class Violation(AssertionError):  # noqa: N818 - it is what the whole program is about
    """An invariant does not hold. `name` is one of REASONS."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail} ({REASONS[name]})")
        self.name = name
