"""Users as the kernel wants them: numbers, looked up before the fork and kept for a while.

A lookup goes through NSS and may block for as long as LDAP or sssd likes. So it happens in a thread of its own, which
is waited for within a bound, is left where it hangs, and serves everybody who asks meanwhile. It is never done in the
child. A host that starts five hundred components of one user asks once: one `Accounts` serves a whole agent, and what
was looked up beside the loop (`preflight`) is known on it.
"""

import errno
import os
import pwd
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from node_manager.runtime.clock import boottime_ns

_KEEP_NS = 60_000_000_000
"""How long an answer is used: long enough for a boot or a crash loop, short enough that a changed group arrives."""
ANSWER_S = 5.0
"""How long an answer is waited for: as long as a launch may take. Who asks later does not wait for the same again."""
_SAFE_NS = 10_000_000_000
"""What is known is known for so long at least: the start that comes of it has begun by then."""
_FRESH_NS = 5_000_000_000
"""How long it is believed that there is no such user: the start that this was asked for follows at once."""
_MAX_KEPT = 256
"""Accounts kept; far above the users of any configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user that a process runs as. `groups` None: the process keeps the agent's identity as it is."""

    name: str
    uid: int
    gid: int
    home: str
    login_shell: str
    groups: tuple[int, ...] | None = None


class AccountError(Exception):
    """The user cannot be taken; the text is a clause that goes after "cannot run as USER: "."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.errno = number


class Accounts:
    """Looks users up, and remembers the ones that exist. `ask` asks the host; raises AccountError."""

    def __init__(self, *, ask: Callable[[str | None], Account] | None = None, answer_s: float = ANSWER_S) -> None:
        self._ask = ask or _asked_of_nss
        self._answer_s = answer_s
        self._lock = threading.Lock()
        self._kept: dict[str | None, tuple[int, Account]] = {}
        self._failed: dict[str | None, tuple[int, AccountError]] = {}
        self._looks: dict[str | None, _Look] = {}
        """Look-ups under way."""

    def find(self, name: str | None) -> Account:
        """Return the account of this user, of the agent's own for None; AccountError where that cannot be.

        A moment after `ask_for` nobody is asked any more, whatever the answer was.
        """
        now_ns = boottime_ns()
        read_ns, failed = self._failed.get(name, (0, None))
        if failed is not None and now_ns - read_ns < _FRESH_NS:
            raise AccountError(failed.errno, str(failed))
        return self.ask_for(name)

    def ask_for(self, name: str | None) -> Account:
        """Return the same, in a thread that may wait: an unknown user is asked for again each time.

        cloud-init may be about to create it.
        """
        kept = self._kept.get(name)
        if kept is not None and boottime_ns() - kept[0] < _KEEP_NS:
            return kept[1]
        look = self._look(name)
        if not look.done.wait(max(0.0, look.until_s - time.monotonic())):
            text = f"whoever knows the users of this host does not answer within {self._answer_s:g} s"
            raise AccountError(errno.ETIMEDOUT, text)
        if isinstance(look.found, AccountError):
            raise AccountError(look.found.errno, str(look.found))
        return look.found

    def prepare(self, names: Iterable[str | None]) -> None:
        """Begin to look these up, all at the same time: who finds them one after the other waits for one bound."""
        for name in names:
            if not self.knows(name):
                self._look(name)

    def knows(self, name: str | None) -> bool:
        """Tell whether `find` answers without asking anybody, for some seconds to come."""
        kept = self._kept.get(name)
        return kept is not None and boottime_ns() - kept[0] < _KEEP_NS - _SAFE_NS

    def uid(self, name: str | None) -> int | None:
        """Return the number of this user, of the agent's own for None; None where there is no such user."""
        try:
            return self.find(name).uid
        except AccountError:
            return None

    def _look(self, name: str | None) -> "_Look":
        """The look-up that is under way, or a new one."""
        with self._lock:
            look = self._looks.get(name)
            if look is not None:
                return look
            look = self._looks[name] = _Look(time.monotonic() + self._answer_s)
        try:
            threading.Thread(target=self._run, args=(name, look), name="xce-account", daemon=True).start()
        except RuntimeError:  # the host has no more threads
            self._run(name, look)
        return look

    def _run(self, name: str | None, look: "_Look") -> None:
        try:
            look.found = self._ask(name)
        except AccountError as error:
            look.found = error
        finally:
            with self._lock:
                if len(self._kept) + len(self._failed) >= _MAX_KEPT:
                    self._kept.clear()
                    self._failed.clear()
                self._failed.pop(name, None)
                if isinstance(look.found, Account):
                    self._kept[name] = (boottime_ns(), look.found)
                else:
                    self._failed[name] = (boottime_ns(), look.found)
                del self._looks[name]
            look.done.set()


class _Look:
    """One look-up. `until_s` (time.monotonic): how long it is waited for."""

    def __init__(self, until_s: float) -> None:
        self.until_s = until_s
        self.done = threading.Event()
        self.found: Account | AccountError = AccountError(errno.EIO, "the look-up has failed")


def _asked_of_nss(name: str | None) -> Account:
    return _own() if name is None else _named(name)


def itself() -> Account:
    """Return the agent's own identity, without a look-up: for children that need no name and no home."""
    uid = os.geteuid()
    return Account(name=str(uid), uid=uid, gid=os.getegid(), home="/", login_shell="/bin/sh")


def _own() -> Account:
    uid = os.geteuid()
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:  # a container's arbitrary uid
        return itself()
    return Account(
        name=entry.pw_name, uid=uid, gid=os.getegid(), home=entry.pw_dir or "/", login_shell=entry.pw_shell or "/bin/sh"
    )


def _named(name: str) -> Account:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise AccountError(errno.ENOENT, "this host has no such user; create it or change `user` in the role") from None
    except (OSError, ValueError) as error:  # NSS out of order; a NUL in the name
        raise AccountError(errno.EIO, f"the user cannot be looked up: {error}") from error
    own_uid = os.geteuid()
    groups: tuple[int, ...] | None = None
    if entry.pw_uid != own_uid:
        if own_uid != 0:
            raise AccountError(
                errno.EPERM, f"the agent runs with uid {own_uid}; only an agent that is root can run another user's"
            )
        groups = tuple(os.getgrouplist(name, entry.pw_gid))
    return Account(
        name=name,
        uid=entry.pw_uid,
        gid=entry.pw_gid,
        home=entry.pw_dir or "/",
        login_shell=entry.pw_shell or "/bin/sh",
        groups=groups,
    )
