"""Users are looked up in threads, and a directory of users that hangs holds nobody up for long."""

import errno
import threading
import time
from collections.abc import Iterator

import pytest

from node_manager.core.spec import ComponentSpec, HostSpec, NodeSpec
from node_manager.runtime import inheritance
from node_manager.runtime.accounts import Account, AccountError, Accounts, itself
from tests.unit.runtime.rig import BOUND_S


class Directory:
    """One that answers when it is told to."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked = 0

    def ask(self, _name: str | None) -> Account:
        self.asked += 1
        assert self.answers.wait(BOUND_S)
        return itself()


@pytest.fixture
def directory() -> Iterator[Directory]:
    made = Directory()
    yield made
    made.answers.set()


def test_a_directory_that_hangs_is_waited_for_within_a_bound_and_asked_once(directory: Directory) -> None:
    """Its thread is left to itself, later askers do not wait again, and what it says at last is known from then on."""
    accounts = Accounts(ask=directory.ask, answer_s=0.1)
    for _ in range(3):
        with pytest.raises(AccountError, match=r"does not answer within 0\.1 s"):
            accounts.find("xce")
    assert accounts.uid("xce") is None
    directory.answers.set()
    until_s = time.monotonic() + BOUND_S
    while not accounts.knows("xce"):
        assert time.monotonic() < until_s
        time.sleep(0.01)
    assert itself() == accounts.find("xce")
    assert directory.asked == 1


def test_who_asks_at_the_same_time_shares_the_answer(directory: Directory) -> None:
    """A host that starts everything at once asks once, and every start has its user."""
    accounts = Accounts(ask=directory.ask, answer_s=BOUND_S)
    found: list[Account] = []
    askers = [threading.Thread(target=lambda: found.append(accounts.find("xce"))) for _ in range(8)]
    for asker in askers:
        asker.start()
    directory.answers.set()
    for asker in askers:
        asker.join(BOUND_S)
    assert found == [itself()] * 8


def test_that_there_is_no_such_user_is_believed_for_the_start_that_asked() -> None:
    """The loop, which goes on with that start, asks nobody; the next start has the host asked again."""
    asked: list[str | None] = []

    def ask(name: str | None) -> Account:
        asked.append(name)
        raise AccountError(errno.ENOENT, "no such user")

    accounts = Accounts(ask=ask)
    for count in (1, 2):
        with pytest.raises(AccountError, match="no such user"):
            accounts.ask_for("ghost")
        with pytest.raises(AccountError, match="no such user"):
            accounts.find("ghost")
        assert asked == ["ghost"] * count


def test_an_unknown_user_that_comes_is_found_at_once() -> None:
    """What was believed of it ends with the answer that there is one."""
    users: list[Account] = []

    def ask(_name: str | None) -> Account:
        if not users:
            raise AccountError(errno.ENOENT, "no such user")
        return users[0]

    accounts = Accounts(ask=ask)
    assert accounts.uid("late") is None
    users.append(itself())
    accounts.ask_for("late")
    assert itself() == accounts.find("late")


def test_all_users_of_a_configuration_are_looked_up_at_the_same_time(directory: Directory) -> None:
    """An agent that begins, and wants to know of each, waits for one of them at most, and then for nobody."""
    components = tuple(
        ComponentSpec(name=name, role="r", command=("/bin/true",), user=name) for name in ("one", "two", "three")
    )
    accounts = Accounts(ask=directory.ask, answer_s=0.1)
    uid = inheritance.expected_uid(NodeSpec(host=HostSpec(name="h"), roles=(), components=components), accounts)
    until_s = time.monotonic() + BOUND_S
    while directory.asked < len(components):
        assert time.monotonic() < until_s
        time.sleep(0.01)
    assert [uid(component.name) for component in components] == [None] * len(components)
    assert directory.asked == len(components)
