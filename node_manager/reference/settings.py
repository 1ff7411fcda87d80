"""What a component is told by its environment, checked in one place."""

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from node_manager.reference.clock import NS_PER_MS, NS_PER_S
from node_manager.reference.faults import Faults, parse_faults

DEFAULT_CONTROLLER = "127.0.0.1:7011"
DEFAULT_HTTP = "127.0.0.1:7080"
DEFAULT_ETCD_PREFIX = "/xce"
DEFAULT_LEASE_S = 10.0
RENEWALS_PER_LEASE = 5
"""Four renewals may fail in a row before the lease is lost."""
MAX_LEASE_S = 3600.0
MIN_LEASE_S = 0.1
MAX_PORT = 65535
DEFAULT_TRACE_MS = 100.0
MAX_TRACE_MS = 10_000.0
DEFAULT_GRACE_S = 120.0
MAX_GRACE_S = 86_400.0
MAX_SLOTS = 1024
"""A worker holds one descriptor for each job."""
MAX_CONTROLLERS = 16
MAX_NAME = 253
"""A DNS name is no longer (RFC 1035)."""
MAX_COUNT = 2**53
"""Terms and epochs stay exact in every JSON reader (RFC 8259, section 6)."""


class SettingsError(Exception):
    """The environment asks for something that cannot be; the text says what would be right."""


class UnresolvedError(SettingsError):
    """A host name is not known now; it may be later."""


class Address(NamedTuple):
    """A numeric TCP address."""

    host: str
    port: int

    @property
    def family(self) -> socket.AddressFamily:
        """AF_INET or AF_INET6."""
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read `HOST:PORT` or `[IPv6]:PORT`. Raises SettingsError.

    A name is resolved here, once, at the start: later it could block the only thread.
    """
    host, _separator, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit() and int(port) <= MAX_PORT):
        raise SettingsError(f"cannot use address {text!r}: give HOST:PORT, such as 127.0.0.1:7011")
    try:
        return Address(str(ipaddress.ip_address(host)), int(port))
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UnresolvedError(f"cannot resolve {host!r}: {error}") from None
    return Address(str(found[0][4][0]), int(port))


def parse_addresses(text: str, variable: str = "XCE_REF_CONTROLLERS") -> tuple[Address, ...]:
    """Read a comma list of addresses; at least one. Raises SettingsError."""
    addresses = tuple(parse_address(part) for part in text.split(",") if part.strip())
    if not 1 <= len(addresses) <= MAX_CONTROLLERS:
        raise SettingsError(f"cannot use {variable}={text!r}: list 1 to {MAX_CONTROLLERS} IP:PORT")
    return addresses


def parse_etcd(text: str) -> tuple[Address, ...]:
    """Read a comma list of etcd's client addresses or http:// URLs; empty: none. Raises SettingsError."""
    if not text.strip():
        return ()
    if "https://" in text:
        raise SettingsError(
            f"cannot use XCE_REF_ETCD={text!r}: it speaks plain HTTP only; give an address without TLS, on a network "
            "that you trust with your hosts"
        )
    return parse_addresses(text.replace("http://", "").replace("/", ""), "XCE_REF_ETCD")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole environment of a reference component."""

    host: str
    instance_id: str
    listen: Address
    http: Address
    controllers: tuple[Address, ...]
    slots: int
    lease_ns: int
    renew_ns: int
    holder: str | None
    lease_path: Path | None
    etcd: tuple[Address, ...]
    etcd_prefix: str
    grace_ns: int
    state_path: Path | None
    trace: bool
    trace_ns: int
    term: int | None
    lease_valid_until_ns: int | None
    supervised: bool
    faults: Faults

    @property
    def state_dir(self) -> Path:
        """Directory for what must be kept. Raises SettingsError where none is named."""
        if self.state_path is None:
            raise SettingsError("cannot start: XCE_REF_STATE is not set: name a directory that this user may write")
        return self.state_path

    def lease_file(self, default_name: str) -> Path:
        """XCE_REF_LEASE, or `default_name` in the state directory."""
        return self.lease_path if self.lease_path is not None else self.state_dir / default_name


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Check the environment. Raises SettingsError with the variable and what would be right."""
    lease_s = _number(environ, "XCE_REF_LEASE_S", DEFAULT_LEASE_S, MIN_LEASE_S, MAX_LEASE_S)
    renew_s = _number(environ, "XCE_REF_RENEW_S", lease_s / RENEWALS_PER_LEASE, MIN_LEASE_S / 10, lease_s / 2)
    try:
        faults = parse_faults(environ.get("XCE_REF_FAULT", ""))
    except ValueError as error:
        raise SettingsError(f"cannot use XCE_REF_FAULT: {error}") from None
    state, lease = environ.get("XCE_REF_STATE"), environ.get("XCE_REF_LEASE")
    return Settings(
        host=_name(environ, "XCE_REF_HOST") or socket.gethostname(),
        instance_id=_name(environ, "XCE_REF_INSTANCE_ID"),
        listen=parse_address(environ.get("XCE_REF_LISTEN", DEFAULT_CONTROLLER)),
        http=parse_address(environ.get("XCE_REF_HTTP", DEFAULT_HTTP)),
        controllers=parse_addresses(environ.get("XCE_REF_CONTROLLERS", DEFAULT_CONTROLLER)),
        slots=int(_number(environ, "XCE_REF_SLOTS", 4, 1, MAX_SLOTS)),
        lease_ns=int(lease_s * NS_PER_S),
        renew_ns=int(renew_s * NS_PER_S),
        holder=_name(environ, "XCE_REF_HOLDER") or None,
        lease_path=Path(lease) if lease else None,
        etcd=parse_etcd(environ.get("XCE_REF_ETCD", "")),
        etcd_prefix=(_name(environ, "XCE_REF_ETCD_PREFIX") or DEFAULT_ETCD_PREFIX).rstrip("/"),
        grace_ns=int(_number(environ, "XCE_REF_HOST_LOSS_GRACE_S", DEFAULT_GRACE_S, 0.001, MAX_GRACE_S) * NS_PER_S),
        state_path=Path(state) if state else None,
        trace=environ.get("XCE_REF_TRACE", "") == "1",
        trace_ns=int(_number(environ, "XCE_REF_TRACE_MS", DEFAULT_TRACE_MS, 1, MAX_TRACE_MS) * NS_PER_MS),
        term=_count(environ, "XCE_TERM"),
        lease_valid_until_ns=_count(environ, "XCE_LEASE_VALID_UNTIL_NS"),
        supervised=bool(environ.get("XCE_HEARTBEAT_SOCKET")),
        faults=faults,
    )


def _name(environ: Mapping[str, str], key: str) -> str:
    value = environ.get(key, "")
    if len(value) > MAX_NAME or not value.isprintable():
        raise SettingsError(f"cannot use {key}: at most {MAX_NAME} printable characters")
    return value


def _number(environ: Mapping[str, str], key: str, default: float, low: float, high: float) -> float:
    text = environ.get(key)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        raise SettingsError(f"cannot use {key}={text!r}: give a number") from None
    if not low <= value <= high:
        raise SettingsError(f"cannot use {key}={text!r}: it must be between {low:g} and {high:g}")
    return value


def _count(environ: Mapping[str, str], key: str) -> int | None:
    text = environ.get(key)
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text) <= 2**63):
        raise SettingsError(f"cannot use {key}={text!r}: give a whole number")
    return int(text)
