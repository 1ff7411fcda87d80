"""Right configurations: what the files say is what the core gets."""

import signal
import socket
from dataclasses import replace

import pytest

from node_manager.core.spec import (
    NS_PER_S,
    CommandSpec,
    ComponentSpec,
    DrainSpec,
    ExecCheck,
    ExitMeaning,
    HeartbeatCheck,
    HttpCheck,
    KillScope,
    LimitsSpec,
    LogSink,
    NotifyAccess,
    NotifyCheck,
    OnDeadline,
    OnFailure,
    ProbeSpec,
    RestartSpec,
    StopSpec,
    TcpCheck,
)
from tests.unit.config.site import BOOT, PLAIN_BOOT, Site

ROLE = "roles/web.yaml"
HEAD = "role: web\nuser: www\ncomponents:\n  server:\n    command: [server]\n"

FULL = """\
role: web
user: www
components:
  server:
    command: [server, --name, "${host.name}", "$${HOME}"]
    user: inherit
    environment: {A: "1", B: "${runtime_dir}/${config.host.instance_id}"}
    environment_file: /etc/default/server
    working_directory: "${state_dir}"
    pre_start: {command: [check], timeout_s: 2.5}
    reload: {command: [poke], timeout_s: 3}
    stop: {signal: QUIT, timeout_s: 4, kill_timeout_s: 2, kill_scope: process, abort_first: true}
    restart: {initial_s: 1, factor: 3, cap_s: 9, reset_after_s: 30, limit: 5, limit_window_s: 100}
    probes:
      startup: {exec: {command: [is-up]}, initial_delay_s: 1, period_s: 2, timeout_s: 3, failure_threshold: 4}
      readiness: {http: {socket: /run/s.sock, path: /h}, success_threshold: 2}
      liveness: {notify: {}, on_failure: report}
    after: [store]
    run_while: [lease.x, component.store.ready]
    stop_when: [host.decommissioned]
    restart_on_change: [lease.x.term]
    states: [host.draining]
    max_lease_s: 20
    exit_status: {79: host.decommissioned, 0: hold}
    drain: {command: [drain-it], timeout_s: 7, on_deadline: kill}
    notify_access: tree
    limits: {memory_max: 512M, cpu_weight: 200, pids_max: 50, nofile: 1024}
    oom_score_adj: -500
    log: file
  store:
    command: [store]
    states: [lease.x]
"""


def test_every_field_of_a_component_reaches_the_core(site: Site) -> None:
    """No field is dropped, and every duration arrives in nanoseconds."""
    site.write(ROLE, FULL)
    assert (
        ComponentSpec(
            name="server",
            role="web",
            command=("server", "--name", "h1", "${HOME}"),
            user=None,
            environment=(("A", "1"), ("B", "/run/x/i-1")),
            environment_file="/etc/default/server",
            working_directory="/state/x",
            pre_start=CommandSpec(command=("check",), timeout_ns=2_500_000_000),
            reload=CommandSpec(command=("poke",), timeout_ns=3 * NS_PER_S),
            stop=StopSpec(
                signal=signal.SIGQUIT,
                timeout_ns=4 * NS_PER_S,
                kill_timeout_ns=2 * NS_PER_S,
                kill_scope=KillScope.PROCESS,
                abort_first=True,
            ),
            restart=RestartSpec(
                initial_ns=NS_PER_S,
                factor=3,
                cap_ns=9 * NS_PER_S,
                reset_after_ns=30 * NS_PER_S,
                limit=5,
                limit_window_ns=100 * NS_PER_S,
            ),
            startup=ProbeSpec(
                check=ExecCheck(command=("is-up",)),
                initial_delay_ns=NS_PER_S,
                period_ns=2 * NS_PER_S,
                timeout_ns=3 * NS_PER_S,
                failure_threshold=4,
            ),
            readiness=ProbeSpec(check=HttpCheck(socket="/run/s.sock", path="/h"), success_threshold=2),
            liveness=ProbeSpec(check=NotifyCheck(), on_failure=OnFailure.REPORT),
            after=("store",),
            run_while=("lease.x", "component.store.ready"),
            stop_when=("host.decommissioned",),
            restart_on_change=("lease.x.term",),
            states=("host.draining",),
            max_lease_ns=20 * NS_PER_S,
            exit_status=((0, ExitMeaning.HOLD), (79, ExitMeaning.DECOMMISSIONED)),
            drain=DrainSpec(
                how=CommandSpec(command=("drain-it",), timeout_ns=7 * NS_PER_S), on_deadline=OnDeadline.KILL
            ),
            notify_access=NotifyAccess.TREE,
            limits=LimitsSpec(memory_max=512 * 2**20, cpu_weight=200, pids_max=50, nofile=1024),
            oom_score_adj=-500,
            log=LogSink.FILE,
        )
        == site.component()
    )


def test_what_is_not_given_has_the_defaults_of_the_core(site: Site) -> None:
    """The defaults are stated once, in the core."""
    expected = ComponentSpec(name="server", role="web", command=("server", "--foreground"), user="www")
    assert expected == site.component()


def test_the_boot_configuration_reaches_the_core(site: Site) -> None:
    """Host, roles, controllers and the grace arrive as they are written."""
    site.write(BOOT, PLAIN_BOOT + 'controllers: ["m1:7011", "[::1]:7011"]\ncontroller: {host_loss_grace_s: 90}\n')
    spec = site.spec()
    assert (spec.host.name, spec.host.instance_id, spec.host.template) == ("h1", "i-1", None)
    assert spec.roles == ("web",)
    assert spec.controllers == ("m1:7011", "[::1]:7011")
    assert spec.host_loss_grace_ns == 90 * NS_PER_S


def test_a_host_without_a_name_has_its_own(site: Site) -> None:
    """`host.name` defaults to what the kernel calls the host, in substitutions too."""
    site.write(BOOT, "version: 1\nroles: [web]\n")
    site.write(ROLE, HEAD + "    environment: {NAME: '${host.name}'}\n")
    assert socket.gethostname() == site.spec().host.name
    assert (("NAME", socket.gethostname()),) == site.component().environment


@pytest.mark.parametrize(
    ("written", "number"),
    [("TERM", 15), ("SIGHUP", 1), ("9x", None), ("12", None), ("RTMIN+3", signal.SIGRTMIN + 3), ("RTMIN+90", None)],
)
def test_signals_have_their_usual_names(site: Site, written: str, number: int | None) -> None:
    """With and without SIG, real-time signals as systemd writes them; numbers without quotes."""
    site.write(ROLE, HEAD + f'    stop: {{signal: "{written}"}}\n')
    if number is None:
        assert len(site.problems()) == 1
    else:
        assert number == site.component().stop.signal


def test_a_signal_may_be_a_number(site: Site) -> None:
    """12 is SIGUSR2 here."""
    site.write(ROLE, HEAD + "    reload: {signal: 12}\n    drain: {signal: USR1}\n")
    assert site.component().reload == signal.SIGUSR2
    assert DrainSpec(how=signal.SIGUSR1) == site.component().drain


def test_a_check_before_the_start_may_be_a_bare_list(site: Site) -> None:
    """A list is the command with the default bound."""
    site.write(ROLE, HEAD + "    pre_start: [nginx, -t]\n")
    assert CommandSpec(command=("nginx", "-t")) == site.component().pre_start


def test_a_drain_by_directive(site: Site) -> None:
    """The directive goes over the heartbeat socket: there is no signal and no command."""
    site.write(ROLE, HEAD + "    drain: {directive: true}\n")
    assert DrainSpec(how=None, on_deadline=OnDeadline.LEAVE) == site.component().drain


def test_a_port_may_come_by_substitution(site: Site) -> None:
    """What the boot configuration says once need not be said again in a probe."""
    site.write(BOOT, PLAIN_BOOT + 'components:\n  server: {environment: {PORT: "8080"}}\n')
    site.write(ROLE, HEAD + "    probes: {readiness: {tcp: {port: '${config.components.server.environment.PORT}'}}}\n")
    assert ProbeSpec(check=TcpCheck(port=8080)) == site.component().readiness


def test_a_list_of_the_boot_configuration_is_joined_by_commas(site: Site) -> None:
    """`${config.controllers}` is what a component's variable takes."""
    site.write(BOOT, PLAIN_BOOT + "controllers: [a:1, b:2]\n")
    site.write(ROLE, HEAD + "    environment: {TO: '${config.controllers}'}\n")
    assert site.component().environment == (("TO", "a:1,b:2"),)


def test_a_substitution_is_not_looked_at_again(site: Site) -> None:
    """What a value brings in is text, never another reference."""
    site.write(BOOT, PLAIN_BOOT + "components: {server: {environment: {A: '${host.name}'}}}\n")
    site.write(ROLE, HEAD + "    working_directory: '/x/${config.components.server.environment.A}'\n")
    [problem] = site.problems()
    assert problem.field == "components.server.working_directory"
    assert "has a substitution in its own value" in problem.problem


def test_a_lone_dollar_is_a_dollar(site: Site) -> None:
    """Only `${` is special, so that shell commands stay readable."""
    site.write(ROLE, HEAD.replace("[server]", "[sh, -c, 'echo $$ $X $${Y}']"))
    assert site.component().command == ("sh", "-c", "echo $$ $X ${Y}")


# --- files on top of each other


def test_drop_ins_merge_in_name_order(site: Site) -> None:
    """Mappings merge, lists and single values replace, the last name wins."""
    site.write(BOOT, PLAIN_BOOT + "controllers: [a:1, b:2]\n")
    site.write("node-manager.d/20-second.yaml", "host: {name: second}\n")
    site.write("node-manager.d/10-first.yaml", "host: {name: first, template: t1}\ncontrollers: [c:3]\n")
    spec = site.spec()
    assert (spec.host.name, spec.host.instance_id, spec.host.template) == ("second", "i-1", "t1")
    assert spec.controllers == ("c:3",)


@pytest.mark.parametrize("name", [".10.yaml.swp", "10.yaml~", "10.yml", ".hidden.yaml", "10.yaml.rpmnew"])
def test_only_drop_ins_named_yaml_count(site: Site, name: str) -> None:
    """An editor's swap file or a package manager's leftover is never configuration."""
    site.write(f"node-manager.d/{name}", "host: {name: wrong}\n")
    assert site.spec().host.name == "h1"


def test_a_later_directory_replaces_a_role_file(site: Site) -> None:
    """/etc/xce/roles wins over /usr/share/xce/roles, file by file."""
    site.write("vendor/web.yaml", HEAD.replace("[server]", "[vendors]"))
    assert site.component().command == ("server", "--foreground")
    (site.root / ROLE).unlink()
    assert site.component().command == ("vendors",)


def test_an_override_changes_field_by_field(site: Site) -> None:
    """Mappings merge down to the last level; a list replaces; the rest of the role file stays."""
    site.write(ROLE, FULL)
    before = site.component()
    site.write(
        BOOT,
        PLAIN_BOOT + "components:\n  server:\n    command: [other]\n    environment: {A: '2', C: '3'}\n"
        "    stop: {timeout_s: 8}\n    probes: {readiness: {period_s: 1}}\n",
    )
    assert before.readiness is not None
    assert site.component() == replace(
        before,
        command=("other",),
        environment=(("A", "2"), ("B", "/run/x/i-1"), ("C", "3")),
        stop=replace(before.stop, timeout_ns=8 * NS_PER_S),
        readiness=replace(before.readiness, period_ns=NS_PER_S),
    )


def test_an_override_of_another_kind_replaces_the_kind(site: Site) -> None:
    """A probe that becomes http is no longer tcp, and a drain by signal no longer one by directive."""
    site.write(
        ROLE,
        HEAD + "    probes: {readiness: {tcp: {port: 1}, period_s: 5}, liveness: {http: {port: 2, path: /l}}}\n"
        "    drain: {directive: true, on_deadline: kill}\n    reload: {signal: HUP}\n",
    )
    site.write(
        BOOT,
        PLAIN_BOOT + "components:\n  server:\n"
        "    probes: {readiness: {heartbeat: {}}, liveness: {http: {socket: /s}}}\n"
        "    drain: {signal: USR1}\n    reload: {command: [again]}\n",
    )
    component = site.component()
    assert ProbeSpec(check=HeartbeatCheck(), period_ns=5 * NS_PER_S) == component.readiness
    assert ProbeSpec(check=HttpCheck(socket="/s", path="/l")) == component.liveness
    assert DrainSpec(how=signal.SIGUSR1, on_deadline=OnDeadline.KILL) == component.drain
    assert CommandSpec(command=("again",)) == component.reload


def test_an_override_of_null_takes_a_probe_away(site: Site) -> None:
    """Null is "not set" wherever a field may be left out."""
    site.write(ROLE, HEAD + "    probes: {liveness: {tcp: {port: 1}}}\n    user: other\n")
    site.write(BOOT, PLAIN_BOOT + "components: {server: {probes: {liveness: null}}}\n")
    assert site.component().liveness is None


def test_yaml_anchors_and_merges_work(site: Site) -> None:
    """Two components may share what they have in common; an own key wins over a merged one."""
    site.write(
        ROLE,
        "role: web\nuser: www\ncomponents:\n  a: &a\n    command: [a]\n    stop: {timeout_s: 3}\n"
        "  b:\n    <<: *a\n    command: [b]\n",
    )
    assert (site.component("b").command, site.component("b").stop.timeout_ns) == (("b",), 3 * NS_PER_S)


def test_a_circle_is_none_when_the_operator_may_be_the_authority(site: Site) -> None:
    """The worker states host facts and stops by them: that is no waiting for itself."""
    site.write(ROLE, HEAD + "    states: [host.decommissioned]\n    stop_when: [host.decommissioned]\n")
    assert site.problems() == ()


def test_an_override_may_make_the_lease_fit(site: Site) -> None:
    """The longest lease is the authority's, and the budget is that of stop, kill and margin."""
    site.write(ROLE, HEAD + "    states: [lease.x]\n    max_lease_s: 12\n  b: {command: [b], run_while: [lease.x]}\n")
    assert site.problems() == ()
    site.write(BOOT, PLAIN_BOOT + "components: {server: {max_lease_s: 11.5}}\n")
    assert [problem.field for problem in site.problems()] == ["components.b.stop.timeout_s"]
