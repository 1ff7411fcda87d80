"""Settings, faults and the fence: what the environment and the agent say."""

from collections.abc import Mapping

import pytest

from node_manager.reference.faults import Faults, parse_faults
from node_manager.reference.fence import Fence
from node_manager.reference.settings import Address, SettingsError, parse_address, parse_addresses, read_settings


def test_defaults_are_those_of_one_host() -> None:
    """An empty environment describes a controller and an apiserver on loopback."""
    settings = read_settings({})
    assert settings.listen == Address("127.0.0.1", 7011)
    assert settings.http == Address("127.0.0.1", 7080)
    assert settings.controllers == (Address("127.0.0.1", 7011),)
    assert (settings.lease_ns, settings.renew_ns) == (10_000_000_000, 2_000_000_000)
    with pytest.raises(SettingsError, match="XCE_REF_STATE"):
        _ = settings.state_dir


@pytest.mark.parametrize(
    "environ",
    [
        {"XCE_REF_LISTEN": ":7011"},
        {"XCE_REF_LISTEN": "127.0.0.1"},
        {"XCE_REF_LISTEN": "127.0.0.1:70000"},
        {"XCE_REF_CONTROLLERS": ","},
        {"XCE_REF_SLOTS": "0"},
        {"XCE_REF_SLOTS": "many"},
        {"XCE_REF_LEASE_S": "nan"},
        {"XCE_REF_LEASE_S": "10", "XCE_REF_RENEW_S": "8"},
        {"XCE_REF_HOST": "a\nb"},
        {"XCE_REF_FAULT": "explode"},
        {"XCE_REF_FAULT": "crash-after=-1"},
        {"XCE_TERM": "-1"},
        {"XCE_REF_ETCD": "https://127.0.0.1:2379"},
        {"XCE_REF_ETCD": "127.0.0.1:2379/v3"},
        {"XCE_REF_ETCD": ","},
        {"XCE_REF_TRACE_MS": "0"},
        {"XCE_REF_HOST_LOSS_GRACE_S": "0"},
    ],
)
def test_wrong_settings_are_named(environ: Mapping[str, str]) -> None:
    """What cannot be is refused with a sentence that begins "cannot"."""
    with pytest.raises(SettingsError, match=r"^cannot use"):
        read_settings(environ)


def test_addresses() -> None:
    """Numeric addresses of both families, and names, which are resolved at once."""
    assert str(parse_address("[::1]:80")) == "[::1]:80"
    assert parse_address("localhost:1").host in {"127.0.0.1", "::1"}
    assert parse_addresses("127.0.0.1:1, 127.0.0.2:2") == (Address("127.0.0.1", 1), Address("127.0.0.2", 2))


def test_the_members_of_etcd_are_addresses_or_urls() -> None:
    """As people write them, with a slash at the end or without; none: the lease is in a file."""
    written = "http://10.0.0.1:2379/, 10.0.0.2:2379,http://[::1]:2379"
    members = (Address("10.0.0.1", 2379), Address("10.0.0.2", 2379), Address("::1", 2379))
    assert read_settings({"XCE_REF_ETCD": written}).etcd == members
    assert read_settings({}).etcd == ()
    assert read_settings({"XCE_REF_ETCD_PREFIX": "/a/b/"}).etcd_prefix == "/a/b"


def test_faults_combine() -> None:
    """Several faults in a list."""
    assert parse_faults("") == Faults()
    assert parse_faults("ignore-term,mute,slow-start=0.5") == Faults(
        ignore_term=True, mute=True, slow_start_ns=500_000_000
    )


def test_the_fence_follows_its_own_term_only() -> None:
    """Renewals under its term move the end; the end itself, a false fact or another term is final."""
    environ = {"XCE_TERM": "3", "XCE_LEASE_VALID_UNTIL_NS": "100"}

    def fence() -> Fence:
        return Fence("f", read_settings(environ))

    renewed = fence()
    renewed.heed({"f": (True, 3, 200), "g": (False, 1, 1)})
    assert renewed.why_over(199) == ""
    assert "passed" in renewed.why_over(200)
    renewed.heed({"f": (True, 3, 500)})
    assert renewed.why_over(300)
    unknown = fence()
    unknown.heed({"f": (None, 3, 900)})
    assert unknown.why_over(100)
    false = fence()
    false.heed({"f": (False, 3, 200)})
    assert "no longer true" in false.why_over(1)
    other = fence()
    other.heed({"f": (True, 4, 200)})
    assert "term 4" in other.why_over(1)
    with pytest.raises(SettingsError, match="XCE_TERM"):
        Fence("f", read_settings({}))
    unfenced = Fence("f", read_settings({**environ, "XCE_REF_FAULT": "unfenced"}))
    unfenced.heed({"f": (False, 3, 200)})
    assert unfenced.why_over(900) == "", "the fault for tests: only others end it"
