"""Wrong configurations: each is refused with the file, the line, the field and what is wrong, all at once."""

import json
import shlex
from dataclasses import dataclass

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.config.site import BOOT, PLAIN_BOOT, Site

ROLE = "roles/web.yaml"
HEAD = "role: web\nuser: www\ncomponents:\n  server:\n    command: [server]\n"
"""Five lines: what a case appends begins in line 6, indented by four."""
B = "components.server"


@dataclass(frozen=True)
class Case:
    """Files that replace those of the plain site, and every problem that must be reported for them."""

    files: dict[str, str]
    expected: list[tuple[str, int, str, str]]


def boot(text: str, *expected: tuple[int, str, str]) -> Case:
    return Case({BOOT: text}, [(BOOT, *item) for item in expected])


def component(text: str, *expected: tuple[int, str, str]) -> Case:
    """`text` is what follows the command of the component `server`; its lines count from 6."""
    return Case({ROLE: HEAD + text}, [(ROLE, line, field, problem) for line, field, problem in expected])


CASES = {
    # --- the boot configuration
    "version missing": boot("roles: [web]\n", (1, "version", "it is missing")),
    "version unknown": boot("version: 2\nroles: [web]\n", (1, "version", "2 is not allowed here")),
    "version as text": boot('version: "1"\nroles: [web]\n', (1, "version", "'1' is not allowed here")),
    "no roles": boot("version: 1\nroles: []\n", (2, "roles", "it is empty")),
    "role as text": boot("version: 1\nroles: web\n", (2, "roles", "a list is expected, not 'web'")),
    "role unknown": boot("version: 1\nroles:\n  - wep\n", (3, "roles[0]", "there is no role wep")),
    "role twice": boot("version: 1\nroles: [web, web]\n", (2, "roles", "web is given twice")),
    "role is a path": boot("version: 1\nroles: [../web]\n", (2, "roles[0]", "'../web' is no name")),
    "unknown field": boot(PLAIN_BOOT + "contollers: []\n", (4, "contollers", "unknown field")),
    "instance id empty": boot(
        'version: 1\nroles: [web]\nhost:\n  instance_id: ""\n', (4, "host.instance_id", "'' is no identity")
    ),
    "instance id is a number": boot(
        "version: 1\nroles: [web]\nhost:\n  instance_id: 12345\n",
        (4, "host.instance_id", "text is expected; YAML reads 12345 as a number"),
    ),
    "controllers without a port": boot(
        PLAIN_BOOT + "controllers:\n  - mgr1:7011\n  - mgr2\n  - mgr3:70110\n",
        (6, "controllers[1]", "'mgr2' is no host:port"),
        (7, "controllers[2]", "'mgr3:70110' is no host:port"),
    ),
    "grace with a unit": boot(
        PLAIN_BOOT + "controller: {host_loss_grace_s: 120s}\n",
        (4, "controller.host_loss_grace_s", "a number is expected, not '120s'"),
    ),
    "override of an unknown component": boot(
        PLAIN_BOOT + "components:\n  servr: {user: x}\n",
        (5, "components.servr", "no role of this host has a component"),
    ),
    "override is wrong, in its own file and line": boot(
        PLAIN_BOOT + "components:\n  server:\n    stop:\n      timeout_s: -1\n",
        (7, f"{B}.stop.timeout_s", "-1 is below the least that is allowed"),
    ),
    "override is empty": boot(PLAIN_BOOT + "components:\n  server:\n", (5, B, "a mapping is expected, not nothing")),
    "override substitutes what is not there": boot(
        PLAIN_BOOT + "components:\n  server:\n    environment:\n      A: ${config.hosts.name}\n",
        (7, f"{B}.environment.A", "${config.hosts.name} has no value on this host"),
    ),
    "everything at once": Case(
        {
            BOOT: "version: 1\nroles: [web, wep]\nhots: {}\n",
            "node-manager.d/10.yaml": "controllers: mgr1\n",
            ROLE: HEAD + "    usr: x\n    stop: {signal: TERN}\n",
        },
        [
            ("node-manager.d/10.yaml", 1, "controllers", "a list is expected"),
            (BOOT, 2, "roles[1]", "there is no role wep"),
            (BOOT, 3, "hots", "unknown field"),
            (ROLE, 6, f"{B}.usr", "unknown field"),
            (ROLE, 7, f"{B}.stop.signal", "'TERN' is no signal"),
        ],
    ),
    "a role as text hides no role's components": boot(
        "version: 1\nroles: web\ncomponents: {server: {user: x}}\n", (2, "roles", "a list is expected, not 'web'")
    ),
    "a mistyped override that a role file refers to": Case(
        {
            BOOT: PLAIN_BOOT + "components: {servr: {environment: {PORT: '80'}}}\n",
            ROLE: HEAD + "    probes: {readiness: {tcp: {port: '${config.components.server.environment.PORT}'}}}\n",
        },
        [(BOOT, 4, "components.servr", "no role of this host has a component servr")],
    ),
    "a mistyped field of an override that a role file refers to": Case(
        {
            BOOT: PLAIN_BOOT + "components: {server: {enviroment: {PORT: '80'}}}\n",
            ROLE: HEAD + "    probes: {readiness: {tcp: {port: '${config.components.server.environment.PORT}'}}}\n",
        },
        [(BOOT, 4, f"{B}.enviroment", "unknown field")],
    ),
    "a mistyped key that a role file refers to": Case(
        {BOOT: PLAIN_BOOT + "contollers: ['a:1']\n", ROLE: HEAD + "    environment: {A: '${config.controllers}'}\n"},
        [(BOOT, 4, "contollers", "unknown field")],
    ),
    # --- YAML
    "key twice": boot("version: 1\nroles: [web]\nversion: 1\n", (3, "version", "given twice, first in line 1")),
    "tab": boot("version: 1\nhost:\n\tname: x\n", (3, "", "a tab stands where YAML expects spaces")),
    "empty": boot("", (0, "", "the file is empty")),
    "only a comment": boot("# nothing yet\n", (0, "", "the file is empty")),
    "a list": boot("- version: 1\n", (1, "", "a mapping is expected")),
    "cut off": boot("version: 1\nroles: [we", (2, "", "cannot read the YAML")),
    "two documents": boot("version: 1\n---\nroles: [web]\n", (2, "", "a second document begins")),
    "octal": component("    stop:\n      timeout_s: 010\n", (7, f"{B}.stop.timeout_s", "YAML reads 010 as 8")),
    "sexagesimal": component("    stop: {timeout_s: 1:30}\n", (6, f"{B}.stop.timeout_s", "YAML reads 1:30 as 90")),
    "off for text": component(
        "    environment:\n      DEBUG: off\n",
        (7, f"{B}.environment.DEBUG", "text is expected; YAML reads off as false"),
    ),
    "number for text": component(
        "    environment: {SLOTS: 16}\n", (6, f"{B}.environment.SLOTS", "text is expected; YAML reads 16 as a number")
    ),
    "on as a key": component("    environment: {on: x}\n", (6, f"{B}.environment.on", "YAML reads the key on as true")),
    "a date": component(
        "    environment: {SINCE: 2024-01-01}\n", (6, f"{B}.environment.SINCE", "YAML reads 2024-01-01 as a date")
    ),
    # --- role files
    "role of another name": Case(
        {ROLE: "role: wep\nuser: x\ncomponents: {a: {command: [b]}}\n"},
        [(ROLE, 1, "role", "the file is that of the role web")],
    ),
    "no user": Case({ROLE: "role: web\ncomponents: {a: {command: [b]}}\n"}, [(ROLE, 1, "user", "it is missing")]),
    "no components": Case({ROLE: "role: web\nuser: x\ncomponents: {}\n"}, [(ROLE, 3, "components", "it is empty")]),
    "component's name": Case(
        {ROLE: "role: web\nuser: x\ncomponents:\n  Web_1: {command: [b]}\n"},
        [(ROLE, 4, "components.Web_1", "'Web_1' is no name")],
    ),
    "no command": Case(
        {ROLE: "role: web\nuser: x\ncomponents:\n  a: {log: file}\n"},
        [(ROLE, 4, "components.a.command", "it is missing")],
    ),
    "command as one text": Case(
        {ROLE: "role: web\nuser: x\ncomponents:\n  a:\n    command: run --now\n"},
        [(ROLE, 5, "components.a.command", "a list is expected, not 'run --now'")],
    ),
    "command empty": Case(
        {ROLE: "role: web\nuser: x\ncomponents:\n  a: {command: []}\n"},
        [(ROLE, 4, "components.a.command", "it is empty")],
    ),
    "command relative": Case(
        {ROLE: "role: web\nuser: x\ncomponents:\n  a: {command: [bin/x]}\n"},
        [(ROLE, 4, "components.a.command", "'bin/x' is a relative path")],
    ),
    "same component in two roles": Case(
        {
            BOOT: "version: 1\nroles: [web, two]\n",
            "roles/two.yaml": "role: two\nuser: x\ncomponents:\n  server: {command: [b]}\n",
        },
        [("roles/two.yaml", 4, B, "the role web has a component of that name too")],
    ),
    "near miss of a field": component("    enviroment: {}\n", (6, f"{B}.enviroment", "unknown field")),
    "duration true": component("    max_lease_s: true\n", (6, f"{B}.max_lease_s", "a number is expected, not true")),
    "duration in quotes": component('    max_lease_s: "5"\n', (6, f"{B}.max_lease_s", "a number is expected, not '5'")),
    "duration zero": component("    max_lease_s: 0\n", (6, f"{B}.max_lease_s", "0 is below the least")),
    "duration of a week": component("    max_lease_s: 604800\n", (6, f"{B}.max_lease_s", "604800 is above the most")),
    "signal that cannot be handled": component(
        "    reload: {signal: KILL}\n", (6, f"{B}.reload.signal", "SIGKILL cannot be handled")
    ),
    "reload by nothing": component("    reload: {}\n", (6, f"{B}.reload", "exactly one of signal, command is needed")),
    "enum": component("    stop: {kill_scope: group}\n", (6, f"{B}.stop.kill_scope", "'group' is not allowed here")),
    "two kinds of probe": component(
        "    probes:\n      readiness:\n        tcp: {port: 1}\n        heartbeat: {}\n",
        (7, f"{B}.probes.readiness", "exactly one of exec, tcp, http, heartbeat, notify is needed, tcp and heartbeat"),
    ),
    "no kind of probe": component(
        "    probes:\n      liveness: {period_s: 1}\n",
        (7, f"{B}.probes.liveness", "exactly one of exec, tcp, http, heartbeat, notify is needed, none"),
    ),
    "http nowhere": component(
        "    probes: {readiness: {http: {path: /x}}}\n",
        (6, f"{B}.probes.readiness.http", "exactly one of port, socket is needed, none is given"),
    ),
    "port": component(
        "    probes: {readiness: {tcp: {port: 70000}}}\n",
        (6, f"{B}.probes.readiness.tcp.port", "70000 is above the most"),
    ),
    "port missing": component(
        "    probes: {readiness: {tcp: {}}}\n", (6, f"{B}.probes.readiness.tcp.port", "it is missing")
    ),
    "liveness needs one success": component(
        "    probes:\n      liveness:\n        tcp: {port: 1}\n        success_threshold: 2\n",
        (9, f"{B}.probes.liveness.success_threshold", "it must be 1 for a liveness probe"),
    ),
    "exit status": component(
        "    exit_status:\n      256: hold\n      1: restart\n",
        (7, f"{B}.exit_status.256", "256 is above the most"),
        (8, f"{B}.exit_status.1", "'restart' is not allowed here"),
    ),
    "drain by two ways": component(
        "    drain: {directive: true, signal: USR1}\n",
        (6, f"{B}.drain", "exactly one of directive, signal, command is needed, directive and signal are given"),
    ),
    "reserved variable": component(
        "    environment: {NOTIFY_SOCKET: /x}\n",
        (6, f"{B}.environment.NOTIFY_SOCKET", "NOTIFY_SOCKET is set by the node manager itself"),
    ),
    "bytes": component("    limits: {memory_max: 1GB}\n", (6, f"{B}.limits.memory_max", "'1GB' is no number of bytes")),
    "relative directory": component(
        "    working_directory: var\n", (6, f"{B}.working_directory", "is no absolute path")
    ),
    "cap below initial": component(
        "    restart: {initial_s: 5, cap_s: 1}\n", (6, f"{B}.restart", "cap_s (1) is below initial_s (5)")
    ),
    "unknown substitution": component(
        "    environment:\n      A: ${host.nme}\n", (7, f"{B}.environment.A", "${host.nme} has no value on this host")
    ),
    "substitution without an end": component(
        "    environment: {A: '${host.name'}\n", (6, f"{B}.environment.A", "`${` without its `}`")
    ),
    "substitution where none takes place": component(
        '    user: "${host.name}"\n', (6, f"{B}.user", "no substitution takes place in this field")
    ),
    # --- between components
    "after an unknown component": component("    after: [servre]\n", (6, f"{B}.after[0]", "servre is no component")),
    "after itself": component("    after: [server]\n", (6, f"{B}.after[0]", "server waits for server")),
    "a circle": component(
        "    after: [b]\n  b:\n    command: [b]\n    after: [c]\n  c:\n    command: [c]\n"
        "    run_while: [component.server.ready]\n",
        (6, f"{B}.after[0]", "server waits for b waits for c waits for server"),
    ),
    "a circle through a lease": component(
        "    states: [lease.x]\n    after: [b]\n  b:\n    command: [b]\n    run_while: [lease.x]\n",
        (7, f"{B}.after[0]", "server waits for b waits for server"),
    ),
    "no fact": component("    run_while: [primary]\n", (6, f"{B}.run_while[0]", "primary is no fact")),
    "no authority": component(
        "    run_while:\n      - controller.primary\n",
        (7, f"{B}.run_while[0]", "no component of this host states controller.primary"),
    ),
    "two authorities": component(
        "    states: [lease.x]\n  b:\n    command: [b]\n    states:\n      - lease.x\n",
        (10, "components.b.states[0]", "server states lease.x too"),
    ),
    "states what only the agent knows": component(
        "    states: [component.server.ready]\n",
        (6, f"{B}.states[0]", "component.server.ready is no fact that a component can state"),
    ),
    "own readiness": component(
        "    stop_when: [component.server.ready]\n", (6, f"{B}.stop_when[0]", "cannot depend on its own readiness")
    ),
    "readiness of nobody": component(
        "    run_while: [component.db.ready]\n", (6, f"{B}.run_while[0]", "db is no component of this host")
    ),
    "change of what has no term": component(
        "    restart_on_change: [host.drained.term]\n",
        (6, f"{B}.restart_on_change[0]", "host.drained.term is no term of a leased fact"),
    ),
    "change of what is no condition": component(
        "    restart_on_change: [lease.x.term]\n", (6, f"{B}.restart_on_change[0]", "lease.x is not in run_while")
    ),
    "stop longer than the lease": component(
        "    states: [lease.x]\n    max_lease_s: 10\n  b:\n    command: [b]\n    run_while: [lease.x]\n"
        "    stop:\n      timeout_s: 9\n",
        (12, "components.b.stop.timeout_s", "its stop takes up to 10.5 s, but lease.x is leased for at most 10 s"),
    ),
    "grace shorter than a restart": Case(
        {
            BOOT: PLAIN_BOOT + "controller:\n  host_loss_grace_s: 106\n",
            ROLE: HEAD + "    states: [host.drained]\n"
            "    probes: {startup: {heartbeat: {}, period_s: 1, failure_threshold: 60}}\n",
        },
        [(BOOT, 5, "controller.host_loss_grace_s", "its rejoin take up to 106 s, the grace is 106 s")],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_wrong_configuration_names_every_problem_and_nothing_else(site: Site, case: Case) -> None:
    """Each problem is reported once, where it stands; one mistake does not bring a cascade of others."""
    for name, text in case.files.items():
        site.write(name, text)
    seen = site.seen()
    assert [item[:3] for item in case.expected] == [item[:3] for item in seen]
    for (*_, fragment), found in zip(case.expected, seen, strict=True):
        assert fragment in found.problem


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_every_problem_says_what_would_be_right(site: Site, case: Case) -> None:
    """A remedy is a sentence of its own, never empty."""
    for name, text in case.files.items():
        site.write(name, text)
    assert all(len(problem.remedy) > len("fix it") for problem in site.problems())


@pytest.mark.parametrize(
    ("files", "remedy"),
    [
        ({BOOT: PLAIN_BOOT + "contollers: []\n"}, "did you mean controllers?"),
        ({BOOT: "version: 1\nroles: [wep]\n"}, "did you mean web? known roles: web"),
        ({BOOT: PLAIN_BOOT + "components: {servr: {}}\n"}, "did you mean server?"),
        ({ROLE: HEAD + "    stop: {kill_scop: tree}\n"}, "did you mean kill_scope? known fields: abort_first, kill"),
        ({ROLE: HEAD + "    probes: {readiness: {tpc: {}}}\n"}, "did you mean tcp?"),
        ({ROLE: HEAD + "    stop: {kill_scope: trees}\n"}, "did you mean tree? allowed: process, tree"),
        ({ROLE: HEAD + "    environment: {A: '${host.nam}'}\n"}, "did you mean host.name? known here: config.host"),
        ({ROLE: HEAD + "    run_while: [component.servre.ready]\n"}, "there are no components of this host"),
        ({ROLE: HEAD + "    stop_when: [host.decomissioned]\n"}, "did you mean host.decommissioned?"),
        ({ROLE: HEAD + "    max_lease_s: 10s\n"}, "write 10: a name that ends in _s counts seconds"),
        ({BOOT: PLAIN_BOOT + "controller: {host_loss_grace_s: 2m}\n"}, "write 120: a name that ends in _s"),
        ({BOOT: PLAIN_BOOT + "controller: {host_loss_grace_s: 1h30m}\n"}, "write 5400: a name"),
        ({BOOT: PLAIN_BOOT + "controller: {host_loss_grace_s: 0.5 h}\n"}, "write 1800: a name"),
        ({BOOT: PLAIN_BOOT + "controller: {host_loss_grace_s: 12 parsecs}\n"}, "write the number alone, such as 12"),
        ({ROLE: HEAD + "    max_lease_s: 500ms\n"}, "write 0.5: a name"),
        ({ROLE: HEAD + "    limits: {nofile: 1024s}\n"}, "write the number alone, such as 1024"),
        ({BOOT: "version: 1\nroles: web\n"}, "write [web]"),
        ({BOOT: PLAIN_BOOT + "controllers: mgr1:7011, mgr2:7011\n"}, 'write ["mgr1:7011", "mgr2:7011"]'),
        ({BOOT: PLAIN_BOOT + "controllers: '[::1]:7011'\n"}, 'write ["[::1]:7011"]'),
        ({ROLE: HEAD + "    after: a b\n"}, "write [a, b]"),
        (
            {ROLE: HEAD + "    pre_start: sh -c 'a && b' --x=1 yes 5\n"},
            'write [sh, -c, "a && b", --x=1, "yes", "5"]; there is no shell',
        ),
        ({ROLE: HEAD + "    probes: {liveness: {exec: {command: test -e /x}}}\n"}, "write [test, -e, /x]; there is"),
        ({ROLE: HEAD + "    pre_start: echo 'a\n"}, 'write [echo, "\'a"]'),
        ({BOOT: ""}, "write the configuration into it: `version: 1` and `roles: [...]` at least"),
        ({ROLE: ""}, "write the role into it: `role: web`"),
        ({"node-manager.d/1.yaml": ""}, "or remove it"),
        ({ROLE: HEAD + "    environment: {A: no}\n"}, 'for text write "no" in quotes'),
        ({ROLE: HEAD + "    pre_start: check it\n"}, "write [check, it]; there is no shell"),
        ({ROLE: HEAD + "    probes: {liveness: {heartbeat: }}\n"}, "write `{}`"),
    ],
)
def test_a_remedy_names_the_near_miss(site: Site, files: dict[str, str], remedy: str) -> None:
    """Whoever mistyped a word is told the word."""
    for name, text in files.items():
        site.write(name, text)
    assert any(remedy in problem.remedy for problem in site.problems()), site.problems()


def test_a_remedy_repeats_no_mistake(site: Site) -> None:
    """What is known of a mistyped key is what was meant; a key that is nothing known is no suggestion."""
    site.write(BOOT, PLAIN_BOOT + "components: {servr: {environment: {PORT: '80'}}, zzz: {user: x}}\n")
    site.write(ROLE, HEAD + "    environment: {A: '${config.components.server.environment.PROT}'}\n")
    [*_, problem] = site.problems()
    assert "PROT} has no value" in problem.problem
    assert problem.remedy.startswith("did you mean config.components.server.environment.PORT?")
    assert "servr" not in problem.remedy
    assert "zzz" not in problem.remedy


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1)
    .filter(lambda text: text.isprintable() and "$" not in text), min_size=1, max_size=4))  # fmt: skip
def test_the_list_of_a_remedy_is_yaml(site: Site, words: list[str]) -> None:
    """Whoever copies the list from the remedy has the very words of the command."""
    text = shlex.join(words)
    if len(text) > 200:
        return
    site.write(ROLE, HEAD + f"    pre_start: {json.dumps(text, ensure_ascii=False)}\n")
    [problem] = site.problems()
    listed = problem.remedy.removeprefix("write ").removesuffix("; there is no shell")
    assert words == yaml.safe_load(listed)


def test_a_problem_prints_as_one_line_and_its_remedy(site: Site) -> None:
    """`check` prints problems as compilers do, so that editors can jump to them."""
    site.write(BOOT, PLAIN_BOOT + "rolls: []\n")
    [problem] = site.problems()
    first, second = str(problem).splitlines()
    assert f"{site.root}/{BOOT}:4: rolls: unknown field" == first
    assert second.startswith("    did you mean roles?")


def test_the_number_of_problems_is_bounded(site: Site) -> None:
    """A file with a thousand mistakes does not bury the first of them."""
    site.write(BOOT, PLAIN_BOOT + "".join(f"x{number}: 1\n" for number in range(1000)))
    problems = site.problems()
    assert len(problems) == 101
    assert problems[-1].problem == "900 more problems are not shown"


def test_a_sentence_is_bounded(site: Site) -> None:
    """A key as long as a file does not become a message as long as a file."""
    site.write(BOOT, PLAIN_BOOT + f'"{"x" * 500_000}": 1\n')
    [problem] = site.problems()
    assert len(str(problem)) < 4000


def test_a_drop_in_directory_that_is_none_is_a_problem(site: Site) -> None:
    """Drop-ins are never left out in silence."""
    site.write("node-manager.d", "")
    assert site.seen() == [("node-manager.d", 0, "", "cannot read the directory: Not a directory")]


def test_too_many_drop_ins_are_a_problem(site: Site) -> None:
    """A directory that something fills is refused as a whole: a part of it would be some other configuration."""
    for number in range(257):
        site.write(f"node-manager.d/{number}.yaml", "host: {name: x}\n")
    seen = site.seen()
    assert [item[:3] for item in seen] == [("node-manager.d", 0, "")]
    assert "it holds more than 256 files named *.yaml" in seen[0].problem


def test_a_role_file_that_is_a_directory_is_a_problem(site: Site) -> None:
    """The last directory that has the role wins, also where it cannot be read: never a fall back to another file."""
    site.write("vendor/web.yaml", HEAD)
    (site.root / ROLE).unlink()
    (site.root / ROLE).mkdir()
    assert site.seen() == [(ROLE, 0, "", "cannot read it: it is a directory")]


def test_a_role_that_cannot_be_read_hides_no_other_problem_and_invents_none(site: Site) -> None:
    """What may stand in an unreadable role is not called unknown."""
    site.write(BOOT, "version: 1\nroles: [web, two]\ncomponents: {other: {}}\n")
    site.write("roles/two.yaml", "role: [")
    site.write(ROLE, HEAD + "    after: [other]\n    run_while: [lease.other]\n    log: disk\n")
    assert [item[:3] for item in site.seen()] == [("roles/two.yaml", 1, ""), (ROLE, 8, "components.server.log")]


def test_no_roles_directory_at_all(site: Site) -> None:
    """The remedy says where roles were looked for."""
    (site.root / ROLE).unlink()
    [problem] = site.problems()
    assert problem.problem == "there is no role web"
    assert (
        problem.remedy
        == f"there are no known roles; looked in {site.root}/vendor (there is no such directory), {site.root}/roles"
    )
