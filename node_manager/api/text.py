"""Text that came from somewhere else, made safe to show and to keep."""

MAX_NAME_LENGTH = 64
"""Longest claimed user name: useradd(8) allows 32, directory services a little more."""
REPLACEMENT = "\ufffd"


def printable(text: str, *, keep: str = "") -> str:
    """Replace every character that a terminal could act upon or that has no glyph, except those in `keep`.

    `str.isprintable` is false for control characters (escape sequences), format characters (which reorder a line),
    lone surrogates (which cannot be encoded) and separators other than the space.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else REPLACEMENT for char in text)


def claimed_name(text: str) -> str:
    """Bound a claimed user name to characters that cannot imitate the `(uid N)` that follows it."""
    return "".join(
        char if char.isascii() and (char.isalnum() or char in "._-@\\$") else "_" for char in text[:MAX_NAME_LENGTH]
    )
