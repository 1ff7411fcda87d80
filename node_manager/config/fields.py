"""The kinds of values that fields of the configuration have: what is accepted, and the sentence when it is not.

pydantic's strict mode everywhere: `"16"` is no number and `true` is no 1. Enums alone are taken from text. Runs in the
validator alone.
"""

import re
import signal
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from node_manager.core.spec import NS_PER_S

MAX_DURATION_S = 86_400.0
"""One day: whatever is longer is a mistake of units."""
MAX_TEXT_CHARS = 16_384
"""One argument, path or value. The kernel's own bound is 128 KiB (execve(2), MAX_ARG_STRLEN)."""
MAX_ITEMS = 256
"""Items of one list or mapping: arguments, variables, dependencies, components."""

NAME_PATTERN = r"[a-z][a-z0-9-]{0,62}"
"""Components, roles and leases: they become names of sockets, cgroups and metrics."""


def refusal(problem: str, remedy: str) -> PydanticCustomError:
    """The error for a validator to raise: becomes a `Problem` with these two sentences."""
    # Not part of the template itself: a value may hold braces.
    return PydanticCustomError("refused", "{problem}", {"problem": problem, "remedy": remedy})


class Strict(BaseModel):
    """Base of every model: nothing is converted, nothing unknown is accepted, nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    def exactly_one(self, *names: str) -> None:
        """Refuse anything but exactly one of these fields being set."""
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) == 1:
            return
        found = f"{' and '.join(given)} are given" if given else "none is given"
        raise refusal(
            f"exactly one of {', '.join(names)} is needed, {found}",
            "keep one of them" if given else f"add one of them, such as `{names[0]}:`; without a setting, write `{{}}`",
        )


def _matching(pattern: str, what: str) -> Callable[[str], str]:
    """A validator: the whole text must match."""
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise refusal(f"{text[:60]!r} is no {what}", f"it must match {pattern}")
        return text

    return check


def _schema(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": f"^{pattern}$"})


def _absolute(text: str) -> str:
    if not text.startswith("/"):
        raise refusal(f"{text[:60]!r} is no absolute path", "begin it with /")
    return text


def _program(command: list[str]) -> list[str]:
    program = command[0]
    if not program:
        raise refusal("the command's name is empty", "write the program's name or absolute path first")
    if "/" in program and not program.startswith("/"):
        raise refusal(f"{program[:60]!r} is a relative path", "write an absolute path, or a name that is found in PATH")
    return command


def signal_number(value: object) -> int:
    """15, `TERM` or `SIGTERM`, `RTMIN+3`: the number of a signal that a program can handle."""
    number = _signal_number(value)
    if number is None:
        raise refusal(
            f"{str(value)[:60]!r} is no signal", "write a name such as TERM, HUP, QUIT or RTMIN+3, or a number"
        )
    if number in {signal.SIGKILL, signal.SIGSTOP}:
        raise refusal(
            f"{signal.Signals(number).name} cannot be handled by a program",
            "write a signal that it handles; SIGKILL follows a stop signal by itself after timeout_s",
        )
    return number


def _signal_number(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value in signal.valid_signals() else None
    if not isinstance(value, str):
        return None
    name = value.removeprefix("SIG")
    if real_time := re.fullmatch(r"RTMIN\+([0-9]{1,2})", name):
        number = signal.SIGRTMIN + int(real_time[1])
        return number if number <= signal.SIGRTMAX else None
    try:
        return signal.Signals[f"SIG{name}"].value
    except KeyError:
        return None


_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def byte_count(value: object) -> int:
    """A number of bytes, or text such as `512M` with the base 1024, like systemd's MemoryMax=."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    if isinstance(value, str) and (parts := re.fullmatch(r"([1-9][0-9]{0,15})([KMGT]?)", value)):
        return int(parts[1]) * _UNITS[parts[2]]
    raise refusal(
        f"{str(value)[:60]!r} is no number of bytes", "write a number, or one with K, M, G or T, such as 512M"
    )


def _exit_code(value: object) -> object:
    """A key of a mapping is text by now; anything that is no number is left to be refused."""
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,3}", value) else value


def _port(value: object) -> object:
    """Text only where a substitution made it: a number in quotes is a number all the same."""
    return int(value) if isinstance(value, str) and re.fullmatch(r"[1-9][0-9]{0,4}", value) else value


def _no_reserved_variable(name: str) -> str:
    if name in RESERVED_VARIABLES:
        raise refusal(f"{name} is set by the node manager itself", "remove it")
    return name


RESERVED_VARIABLES = frozenset(
    {
        "XCE_HEARTBEAT_SOCKET",
        "NOTIFY_SOCKET",
        "XCE_COMPONENT",
        "XCE_GENERATION",
        "XCE_MAIN_PID",
        "XCE_HELPER",
        "XCE_HELPER_PID",
        "XCE_TERM",
        "XCE_LEASE_VALID_UNTIL_NS",
    }
)
"""What a component, or a command beside it, gets from the agent."""

_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]{0,127}"
_USER = r"[A-Za-z_][A-Za-z0-9_.-]{0,30}\$?"
_IDENTITY = r"[!-~]{1,128}"
HOST_PATTERN = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?"
_ADDRESS = r"([A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45})"

Text = Annotated[str, Field(max_length=MAX_TEXT_CHARS)]
Name = Annotated[str, AfterValidator(_matching(NAME_PATTERN, "name")), _schema(NAME_PATTERN)]
User = Annotated[str, AfterValidator(_matching(_USER, "user name")), _schema(_USER)]
Variable = Annotated[
    str,
    AfterValidator(_matching(_VARIABLE, "variable name")),
    AfterValidator(_no_reserved_variable),
    _schema(_VARIABLE),
]
Identity = Annotated[str, AfterValidator(_matching(_IDENTITY, "identity")), _schema(_IDENTITY)]
HostName = Annotated[str, AfterValidator(_matching(HOST_PATTERN, "host name")), _schema(HOST_PATTERN)]
Address = Annotated[str, AfterValidator(_matching(_ADDRESS, "host name or address"))]
AbsolutePath = Annotated[Text, AfterValidator(_absolute)]
Command = Annotated[list[Text], Field(min_length=1, max_length=MAX_ITEMS), AfterValidator(_program)]
Seconds = Annotated[float, Field(ge=0.001, le=MAX_DURATION_S, allow_inf_nan=False)]
SecondsOrNone = Annotated[float, Field(ge=0.0, le=MAX_DURATION_S, allow_inf_nan=False)]
"""Seconds that may be 0."""
Period = Annotated[float, Field(ge=0.1, le=MAX_DURATION_S, allow_inf_nan=False)]
"""Seconds between probes: ten probes a second are the most that is not an attack."""
Port = Annotated[
    int,
    Field(ge=1, le=65_535),
    BeforeValidator(_port),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 65_535}, {"type": "string", "pattern": r"^\$\{.*\}$"}]}
    ),
]
SignalNumber = Annotated[
    int,
    BeforeValidator(signal_number),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": "^(SIG)?[A-Z]"}, {"type": "integer", "minimum": 1}]}),
]
Bytes = Annotated[
    int,
    BeforeValidator(byte_count),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^[1-9][0-9]*[KMGT]?$"}]}
    ),
]
ExitCode = Annotated[int, Field(ge=0, le=255), BeforeValidator(_exit_code)]


def nanoseconds(seconds: float) -> int:
    """The duration as the core counts it."""
    return round(seconds * NS_PER_S)


def enum_field(default: Any, description: str) -> Any:
    """A field with an enum's value as text, which strict mode alone would refuse."""
    return Field(default, strict=False, description=description)
