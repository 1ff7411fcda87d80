"""What is wrong with a configuration, so that somebody can put it right at three in the morning."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing that is wrong: where it stands, what it is, and what would be right.

    `line` counts from 1; 0 means the file as a whole. `field` is a dotted path such as
    `components.worker.stop.timeout_s`, empty where the problem is not about one field.
    """

    file: str
    line: int
    field: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        what = f"{self.field}: {self.problem}" if self.field else self.problem
        return f"{where}: {what}\n    {self.remedy}"


class ConfigInvalid(Exception):  # noqa: N818  it is the name of a state of the configuration, not of a fault of ours
    """The configuration cannot be used: every problem that was found, in the order of files and lines.

    `absent` is true when the boot configuration does not exist (yet).
    """

    def __init__(self, problems: tuple[Problem, ...], *, absent: bool = False) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems
        self.absent = absent


class ConfigUnreadError(ConfigInvalid):
    """Nothing is known of the configuration: whoever was to read it gave no answer. It may well be right.

    Whoever needs a valid configuration has none all the same; whoever tells a person must not call it wrong.
    """
