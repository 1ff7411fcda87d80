from pathlib import Path

import pytest

from tests.unit.config.site import BOOT, PLAIN_BOOT, PLAIN_ROLE, Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A right configuration of one role with one component."""
    found = Site(tmp_path)
    found.write(BOOT, PLAIN_BOOT)
    found.write("roles/web.yaml", PLAIN_ROLE)
    return found
