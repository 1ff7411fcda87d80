"""The boot configuration: which roles this host has, who it is, and what differs from the role files (DESIGN 7).

Runs in the validator alone.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema, field_validator

from node_manager.config.fields import MAX_ITEMS, HostName, Identity, Name, Seconds, Strict, refusal

VERSION = 1
"""The only version of the boot configuration so far."""
MAX_CONTROLLERS = 32
"""Manager hosts of one cluster: two to five are usual."""
MAX_ROLES = 32
"""Roles of one host."""
MAX_PORT = 65_535

_ENDPOINT = re.compile(r"(?P<host>[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):(?P<port>[0-9]{1,5})")


def _endpoint(text: str) -> str:
    parts = _ENDPOINT.fullmatch(text)
    if not parts or not 1 <= int(parts["port"]) <= MAX_PORT:
        raise refusal(f"{text[:60]!r} is no host:port", "write it like mgr1:7011, or [2001:db8::1]:7011")
    return text


Endpoint = Annotated[
    str,
    AfterValidator(_endpoint),
    WithJsonSchema({"type": "string", "pattern": r"^([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}$"}),
]


class HostModel(Strict):
    """Who this host is."""

    name: HostName | None = None
    instance_id: Identity | None = None
    template: Identity | None = None


class ControllerModel(Strict):
    """What this host assumes of the cluster's controller."""

    host_loss_grace_s: Seconds | None = None


class BootModel(Strict):
    """The boot configuration with its drop-ins merged."""

    version: Literal[1] = Field(description="the version of this format: 1")
    roles: list[Name] = Field(min_length=1, max_length=MAX_ROLES, description="this host's roles, such as [worker]")
    host: HostModel = HostModel()
    controllers: list[Endpoint] = Field(default_factory=list, max_length=MAX_CONTROLLERS)
    controller: ControllerModel = ControllerModel()
    components: dict[Name, dict[str, Any]] = Field(default_factory=dict, max_length=MAX_ITEMS)

    @field_validator("roles", "controllers")
    @classmethod
    def _once(cls, names: list[str]) -> list[str]:
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise refusal(f"{', '.join(twice)} is given twice", "keep one of the two")
        return names
