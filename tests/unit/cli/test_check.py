"""What a person is told of a configuration that cannot be used."""

import pytest

from node_manager.cli.daemon import EX_CONFIG, EX_NOT_SO, print_problems
from node_manager.config.load import ConfigInvalid, ConfigUnreadError, Problem

PROBLEM = Problem("/etc/x.yaml", 3, "roles", "there is none", "name one")


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (ConfigInvalid((PROBLEM,)), EX_CONFIG, "the configuration is wrong: 1 problem"),
        (ConfigUnreadError((PROBLEM,)), EX_NOT_SO, "the configuration could not be read; it may be right"),
    ],
)
def test_only_a_wrong_configuration_is_called_wrong(
    capsys: pytest.CaptureFixture[str], error: ConfigInvalid, status: int, sentence: str
) -> None:
    """One that nobody could read in time has another sentence and another exit status: a script may try again."""
    assert status == print_problems(error)
    said = capsys.readouterr().err.splitlines()
    assert said == ["/etc/x.yaml:3: roles: there is none", "    name one", sentence]
