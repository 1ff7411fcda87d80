"""Replacing a small file in one step."""

import os
from pathlib import Path

_MODE = 0o600


def replace(path: Path, data: bytes) -> None:
    """Write a new file beside, make it durable, and rename it into place. Blocks. Raises OSError."""
    temporary = path.with_name(f"{path.name}.new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
    with open(fd, "wb") as file:  # noqa: PTH123 - a descriptor, opened without following links
        file.write(data)
        file.flush()
        os.fsync(fd)
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
