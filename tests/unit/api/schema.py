"""Just enough of JSON Schema (2020-12) to check answers against `openapi.json`; refuses keywords it does not know."""

from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_ANNOTATIONS = {"description", "default", "title"}
_CHECKED = {
    "$ref", "type", "properties", "required", "items", "enum", "const", "oneOf", "additionalProperties", "minimum",
    "maximum", "exclusiveMinimum", "maxItems", "maxLength",
}  # fmt: skip


def errors(schema: dict[str, Any], value: Any, document: dict[str, Any], where: str = "$") -> list[str]:
    """Everything that is wrong with `value`, with its place."""
    if "$ref" in schema:
        return errors(resolve(schema["$ref"], document), value, document, where)
    unknown = schema.keys() - _ANNOTATIONS - _CHECKED
    assert not unknown, f"this validator does not know {unknown} of {where}"
    found = _simple(schema, value, where)
    if "oneOf" in schema:
        matching = [option for option in schema["oneOf"] if not errors(option, value, document, where)]
        if len(matching) != 1:
            found.append(f"{where}: {len(matching)} of oneOf match")
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        found += [f"{where}: {name} is missing" for name in schema.get("required", []) if name not in value]
        if schema.get("additionalProperties") is False:
            found += [f"{where}: {name} is unknown" for name in value if name not in properties]
        for name, subschema in properties.items():
            if name in value:
                found += errors(subschema, value[name], document, f"{where}.{name}")
    if isinstance(value, list):
        for number, item in enumerate(value):
            found += errors(schema.get("items", {}), item, document, f"{where}[{number}]")
        if len(value) > schema.get("maxItems", len(value)):
            found.append(f"{where}: too many items")
    return found


def resolve(reference: str, document: dict[str, Any]) -> dict[str, Any]:
    """Follow a reference within the document."""
    target: Any = document
    for part in reference.removeprefix("#/").split("/"):
        target = target[part]
    assert isinstance(target, dict)
    return target


def _simple(schema: dict[str, Any], value: Any, where: str) -> list[str]:
    found = []
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        # In Python a boolean is an integer, in JSON it is not.
        if not any(
            isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool)) for name in names
        ):
            found.append(f"{where}: {value!r} is not {' or '.join(names)}")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{where}: {value!r} is none of {schema['enum']}")
    if "const" in schema and value != schema["const"]:
        found.append(f"{where}: {value!r} is not {schema['const']!r}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < schema.get("minimum", value) or value > schema.get("maximum", value):
            found.append(f"{where}: {value!r} is out of range")
        if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
            found.append(f"{where}: {value!r} is too small")
    if isinstance(value, str) and len(value) > schema.get("maxLength", len(value)):
        found.append(f"{where}: too long")
    return found
