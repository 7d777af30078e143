"""Every dialect is read by one parser, comes back unchanged, and no text raises anything but our error."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hvdtrain.errors import HostFileError
from hvdtrain.launch.hostfile import DIALECTS, parse, read, write
from hvdtrain.launch.spec import Host

HOSTFILES = Path(__file__).parents[3] / "hostfiles"

names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,12}", fullmatch=True) | st.ip_addresses(v=6).map(str)
users = st.none() | st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,6}", fullmatch=True)


@st.composite
def host(draw, most_slots=99):
    slots = draw(st.integers(1, most_slots))
    max_slots = draw(st.none() | st.integers(slots, 2 * most_slots))
    return Host(name=draw(names), slots=slots, max_slots=max_slots, user=draw(users))


def host_lists(**limits):
    return st.lists(host(**limits), min_size=1, max_size=6, unique_by=lambda host: host.login).map(tuple)


def without_max_slots(hosts):
    return tuple(Host(name=host.name, slots=host.slots, user=host.user) for host in hosts)


@given(host_lists())
def test_open_mpi_comes_back_unchanged(hosts):
    assert parse(write(hosts, "openmpi"), "file") == hosts


@pytest.mark.parametrize("dialect", sorted(set(DIALECTS) - {"openmpi"}))
@given(hosts=host_lists(most_slots=9))
def test_the_other_dialects_come_back_with_all_that_they_can_say(dialect, hosts):
    assert parse(write(hosts, dialect), "file") == without_max_slots(hosts)


alphabet = st.sampled_from([*"ab01[]-,:@=# \t\r\n.%/*\\$;\x00\ufeff", "slots=", "max_slots=", "gpu[", "::"])


@given(st.text() | st.lists(alphabet, max_size=30).map("".join))
@example("gpu[0-999999]")
@example("gpu[9999999999999999999999-1]:2")
@example("a[1-2]b[0-999]c[0-999]")
@example("a slots=" + "9" * 5000)
@example("gpu[1-04]")
@example("[]:1")
@example("a[]")
@example("[1-2]")
@example("[٣-٤]")
@example("a[1-2]]")
def test_no_text_raises_anything_but_our_own_error(text):
    hosts, fault = hosts_or_fault(lambda: parse(text, "file"))
    assert hosts if fault is None else "file:" in fault.found
    assert all(one.name[0] != "-" and one.slots > 0 for one in hosts)


def hosts_or_fault(of):
    try:
        return of(), None
    except HostFileError as error:
        return (), error


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_but_our_own_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "hosts"
    path.write_bytes(content)
    hosts, fault = hosts_or_fault(lambda: read(path))
    assert hosts if fault is None else str(path) in str(fault)


def shown(text):
    return [(one.login, one.slots, one.max_slots) for one in parse(text, "file")]


def test_comments_blank_lines_windows_line_ends_and_a_byte_order_mark():
    assert shown("\ufeff# ours\r\n\r\n  a slots = 2\t# two\r\nb:3\r\n") == [("a", 2, None), ("b", 3, None)]


def test_a_host_named_again_adds_its_slots_in_the_place_of_the_first():
    assert shown("a\nb\na\nb:2\n") == [("a", 2, None), ("b", 3, None)]


def test_ranges_keep_the_order_in_which_they_are_written():
    assert shown("gpu[08-10,03]:2") == [(f"gpu{n}", 2, None) for n in ("08", "09", "10", "03")]
    assert shown("r[1-2]n[1-2]") == [(name, 1, None) for name in ("r1n1", "r1n2", "r2n1", "r2n2")]


def test_addresses_and_users():
    assert shown("alice@[fe80::7]:4,10.0.0.1:2,[::1]") == [
        ("alice@fe80::7", 4, None),
        ("10.0.0.1", 2, None),
        ("::1", 1, None),
    ]
    assert shown("fe80::7 slots=4") == [("fe80::7", 4, None)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-oProxyCommand=x", "expected a host name"),
        ("a;reboot", "expected a host name"),
        ("$(reboot)", "expected a host name"),
        ("a`b`:2", "expected a host name"),
        ("-x@a", "expected a user name"),
        ("a:0", "from 1 to 999999"),
        ("a:two", "from 1 to 999999"),
        ("a slots=-1", "from 1 to 999999"),
        ("a cores=4", "expected `slots=N`"),
        ("a 4", "expected `slots=N`"),
        ("a:2 slots=2", "the number of slots once"),
        ("a slots=2 slots=2", "at most once"),
        ("a slots=4 max_slots=2", "at least the 4 of slots"),
        ("a,b slots=2", "expected one host"),
        ("fe80::7:4", "in brackets"),
        ("[fe80:::7]:4", "expected an IPv6 address"),
        ("gpu[4-1]", "expected a range"),
        ("gpu[1-x]", "expected a range"),
        ("gpu[1", "expected a host name"),
        ("a,,b", "expected a host name"),
        ("gpu[0-999999]", "expected at most 100000"),
    ],
)
def test_a_fault_says_where_what_and_what_is_expected(line, words):
    with pytest.raises(HostFileError) as caught:
        parse(f"# ours\n{line}\n", "hosts.txt")
    assert caught.value.found.startswith("hosts.txt:2: ")
    assert words in caught.value.found


def test_all_faults_are_shown_at_once():
    with pytest.raises(HostFileError) as caught:
        parse("a:0\nb\nc d\n", "hosts.txt")
    assert [part.partition(": ")[0] for part in caught.value.found.split("\n")] == [
        "hosts.txt:1",
        " " * 9 + "hosts.txt:3",
    ]


@pytest.mark.parametrize("text", ["", "# nothing\n\n"])
def test_a_file_without_hosts_is_refused(text):
    with pytest.raises(HostFileError, match="hosts in file"):
        parse(text, "file")


def test_a_host_with_max_slots_is_named_once():
    with pytest.raises(HostFileError) as caught:
        parse("a slots=1 max_slots=2\na\n", "file")
    assert "a twice" in caught.value.found


def test_a_missing_file_is_our_error(tmp_path):
    with pytest.raises(HostFileError, match="nowhere"):
        read(tmp_path / "nowhere")


EXAMPLES = {
    "openmpi": [("gpu01", 4, 8), ("gpu02", 4, None), ("alice@gpu03", 2, None)],
    "hydra": [("gpu01", 4, None), ("gpu02", 4, None), ("fd00::3", 2, None)],
    "list": [("gpu01", 2, None), ("gpu02", 2, None)],
    "horovodrun": [("gpu01", 4, None), ("gpu02", 4, None)],
    "ranges": [(f"gpu{n}", 4, None) for n in ("01", "02", "03", "04", "07")]
    + [(name, 1, None) for name in ("rack1node1", "rack1node2", "rack2node1", "rack2node2")],
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_each_dialect(name):
    hosts = read(HOSTFILES / f"{name}.txt")
    assert [(one.login, one.slots, one.max_slots) for one in hosts] == EXAMPLES[name]
