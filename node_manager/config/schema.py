"""JSON Schema of the files for editors, and what the models cannot say in it.

`schema_text` loads pydantic in the process that calls it: a command's, never the agent's.
"""

import json
from typing import Any

KINDS = ("boot", "role")
"""The boot configuration and role files."""


def json_schema() -> dict[str, Any]:
    """The schema of each kind of file, by its name in KINDS."""
    from node_manager.config.boot import BootModel
    from node_manager.config.role import ComponentModel, RoleFile

    role = RoleFile.model_json_schema()
    boot = BootModel.model_json_schema()
    # An override has the fields of a component, and needs none of them.
    override = _optional(ComponentModel.model_json_schema())
    definitions = override.pop("$defs")
    boot["$defs"] = boot.get("$defs", {}) | definitions | {"ComponentModel": override}
    boot["properties"]["components"]["additionalProperties"] = {"$ref": "#/$defs/ComponentModel"}
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {
        "boot": dialect | boot | {"title": "XCE node manager: boot configuration"},
        "role": dialect | role | {"title": "XCE node manager: role file"},
    }


def schema_text(kind: str) -> str:
    """The schema of one kind of file as JSON text; ValueError for a kind that is none of KINDS."""
    if kind not in KINDS:
        raise ValueError(f"cannot print the schema of {kind!r}: the kinds are {', '.join(KINDS)}")
    return json.dumps(json_schema()[kind], indent=2)


def _optional(schema: Any) -> Any:
    """The schema without any demand that a field be there."""
    if isinstance(schema, dict):
        return {key: _optional(value) for key, value in schema.items() if key != "required"}
    return [_optional(item) for item in schema] if isinstance(schema, list) else schema
