from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import goq as package
from goq.broker.group.coordinator import Coordinator
from goq_cli.main import COMMANDS
from tests.support.cli.command import Run
from tests.support.delivery.members_model import FakeHost
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode


def test_topics_are_created_shown_altered_listed_and_deleted(goq: Run, topic: str) -> None:
    goq("topic", "create", topic, "--partitions", "2", "--set", "retention.age=1d")
    goq("topic", "alter", topic, "--set", "fsync=interval", "--partitions", "3")
    shown = json.loads(goq("topic", "show", topic, "--json").stdout)
    assert len(shown["partitions"]) == 3
    assert shown["settings"]["retention.age"] == "1d"
    assert shown["settings"]["fsync"] == "interval"
    assert topic in goq("topic", "list").stdout.decode()
    goq("topic", "delete", topic, "--yes")
    assert b"topic create" in goq("topic", "show", topic, code=3).stderr


def test_an_unset_setting_gets_the_default_of_a_new_topic(goq: Run, topic: str) -> None:
    goq("topic", "create", topic, "--set", "retention.age=1d", "--set", "fsync=never")
    altered = goq("topic", "alter", topic, "--unset", "retention.age", "--json").stdout
    settings = json.loads(altered)["settings"]
    assert (settings["retention.age"], settings["fsync"]) == ("7d", "never")
    refused = goq("topic", "alter", topic, "--unset", "retention.aeg", code=7).stderr
    assert b"did you mean retention.age?" in refused
    goq("topic", "create", f"{topic}.dlq", "--set", "delivery.max_attempts=3")
    altered = goq("topic", "alter", f"{topic}.dlq", "--unset", "delivery.max_attempts", "--json")
    assert json.loads(altered.stdout)["settings"]["delivery.max_attempts"] == "none"


def test_what_cannot_be_undone_is_not_done_unasked(goq: Run, topic: str) -> None:
    goq("topic", "create", topic)
    assert b"--yes" in goq("topic", "delete", topic, code=2).stderr
    goq("topic", "show", topic)


def test_exit_codes_tell_what_was_wrong(goq: Run, topic: str) -> None:
    goq("topic", "create", topic)
    goq("topic", "create", topic, code=6)
    goq("topic", "create", "..", code=7)
    goq("topic", "create", f"{topic}-b", "--set", "nope=1", code=7)
    goq("topic", "create", code=2)
    goq("nonsense", code=2)
    goq("group", "show", "g", "--topic", topic, code=3)


def test_errors_are_json_too(goq: Run) -> None:
    done = goq("--json", "topic", "show", "missing", code=3)
    problem = json.loads(done.stderr)
    assert (problem["code"], problem["exit_code"]) == ("topic_not_found", 3)
    assert done.stdout == b""
    assert json.loads(goq("topic", "--json", "nope", code=2).stderr)["code"] == "usage"


def test_a_group_is_shown_reset_and_deleted(goq: Run, topic: str) -> None:
    goq("produce", topic, stdin=b"a\nb\nc\n")
    goq("consume", topic, "--group", "g", "--until-empty")
    reset = ("group", "reset", "g", "--topic", topic, "--to", "earliest")
    planned = json.loads(
        goq(
            "group", "reset", "g", "--topic", topic, "--to", "earliest", "--dry-run", "--json"
        ).stdout
    )
    assert sum(p["redelivers"] for p in planned["partitions"]) == 3
    shown = json.loads(goq("group", "show", "g", "--topic", topic, "--json").stdout)
    assert shown["lag"] == 0
    goq(*reset)
    assert len(goq("consume", topic, "--group", "g", "--until-empty").stdout.splitlines()) == 3
    assert b"\tg\t" in goq("group", "list").stdout
    goq("group", "delete", "g", "--topic", topic, "--yes")
    goq("group", "show", "g", "--topic", topic, code=3)


def test_a_reset_tells_of_a_group_that_is_new_and_what_may_have_been_meant(
    goq: Run, topic: str
) -> None:
    goq("produce", topic, stdin=b"a\n")
    goq("consume", topic, "--group", "billing", "--until-empty")
    known = ("group", "reset", "billing", "--topic", topic, "--to", "earliest")
    assert goq(*known).stderr == b""
    misspelt = ("group", "reset", "bililng", "--topic", topic, "--to", "latest")
    told = f"goq: bililng is a new group of {topic}; did you mean billing?\n".encode()
    assert goq(*misspelt, "--dry-run").stderr == told
    replayed = ("replay", topic, "--group", "bililng", "--from-offset", "0")
    assert goq(*replayed).stderr == told
    assert goq(*misspelt).stderr == b""
    other = goq("group", "reset", "audit", "--topic", topic, "--to", "latest").stderr
    assert other == f"goq: audit is a new group of {topic}\n".encode()
    assert goq("consume", topic, "--group", "audit", "--until-empty").stdout == b""


def test_peek_shows_each_state_without_touching_it(goq: Run, topic: str) -> None:
    goq("produce", topic, stdin=b"a\nb\n")
    goq("consume", topic, "--group", "g", "--max", "1", "--no-ack", "--prefetch", "1")

    def peek(*arguments: str) -> list[str]:
        found = json.loads(goq("peek", topic, *arguments, "--json").stdout)
        return [message["value"] for message in found["messages"]]

    for _ in range(2):
        assert peek() == ["a", "b"]
        assert peek("--group", "g") == ["b"]
        assert peek("--group", "g", "--state", "leased") == ["a"]
        assert peek("--group", "g", "--state", "retry") == []
    assert b"leased" in goq("peek", topic, "--group", "g", "--state", "x", code=7).stderr
    goq("peek", topic, "--state", "ready", code=2)


def test_empty_results_are_json_too(goq: Run, topic: str) -> None:
    goq("topic", "create", topic)
    assert json.loads(goq("peek", topic, "--json").stdout) == {"messages": []}
    assert json.loads(goq("group", "list", "--topic", topic, "--json").stdout) == {"groups": []}
    assert goq("consume", topic, "--json").stdout == b""


def test_contexts_choose_the_server(goq: Run, node: RunningNode, tmp_path: Path) -> None:
    unset = {"GOQ_SERVER": ""}
    goq("context", "set", "here", "--server", node.url, "--token", "secret", **unset)
    goq("context", "set", "nowhere", "--server", "http://127.0.0.1:1", **unset)
    goq("topic", "list", code=5, **unset)
    used = goq("context", "use", "here", "--json", **unset).stdout
    assert json.loads(used) == {"current": "here"}
    goq("topic", "list", **unset)
    shown = json.loads(goq("context", "list", "--json", **unset).stdout)
    assert shown["current"] == "here"
    assert "secret" not in goq("context", "list", "--json").stdout.decode()
    assert (tmp_path / "goq" / "contexts.json").stat().st_mode & 0o077 == 0
    goq("context", "use", "unknown", code=3, **unset)
    deleted = goq("context", "delete", "here", "--json", **unset).stdout
    assert json.loads(deleted) == {"deleted": "here"}
    goq("context", "set", "none", code=2, **unset)
    for server in ("ftp://x", "http://", "localhost:x"):
        refused = goq("context", "set", "wrong", "--server", server, code=2, **unset).stderr
        assert b"is not a server's URL" in refused
    refused = goq("topic", "list", "--server", "http://me:hidden@127.0.0.1:1", code=7).stderr
    assert b"goq asks for a token" in refused
    assert b"hidden" not in refused
    assert b"wrong" not in goq("context", "list", **unset).stdout
    (tmp_path / "goq" / "contexts.json").write_text("{broken")
    assert b"contexts.json" in goq("topic", "list", code=2, **unset).stderr


def test_the_version_is_the_package_s(goq: Run) -> None:
    assert goq("version").stdout.decode() == f"goq {package.__version__}\n"
    assert json.loads(goq("version", "--json").stdout) == {"version": package.__version__}


def test_the_doctor_finds_a_healthy_node_well(goq: Run) -> None:
    assert json.loads(goq("doctor", "--json").stdout)["status"] == "ok"


def test_bench_measures_and_leaves_nothing_behind(goq: Run) -> None:
    before = goq("topic", "list").stdout
    done = goq("bench", "--messages", "2000", "--size", "100B", "--singles", "5", "--json")
    results = json.loads(done.stdout)["results"]
    assert [row["messages"] for row in results] == [5, 2000, 2005]
    assert all(row["messages_per_second"] > 0 for row in results)
    assert goq("topic", "list").stdout == before


@pytest.mark.parametrize("flag", ["--listen", "--set"])
def test_serve_explains_bad_settings(goq: Run, flag: str, tmp_path: Path) -> None:
    value = "nonsense" if flag == "--listen" else "broker.nope=1"
    done = goq("serve", "--data-dir", str(tmp_path / "d"), flag, value, code=2)
    assert value.partition("=")[0] in done.stderr.decode()


def test_a_serve_that_fails_leaves_no_folder(goq: Run, node: RunningNode, tmp_path: Path) -> None:
    address = node.url.removeprefix("http://")
    data_dir = tmp_path / "new" / "data"
    serve = ("serve", "--data-dir", str(data_dir))
    refused = goq(*serve, "--listen", address, code=2)
    assert b"cannot listen on" in refused.stderr
    assert not data_dir.parent.exists()
    peers = f"n1={address},n2=127.0.0.1:1"
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 4)
    secret.chmod(0o600)
    member = ("--node-id", "n1", "--peers", peers, "--cluster-secret-file", str(secret))
    goq(*serve, "--listen", "127.0.0.1:0", "--cluster-listen", address, *member, code=2)
    assert not data_dir.parent.exists()
    alone = ("--node-id", "n1", "--cluster-secret-file", str(secret))
    refused = goq(
        *serve, "--listen", "127.0.0.1:0", "--cluster-listen", "127.0.0.1:0", *alone, code=2
    )
    assert b"n1 has no cluster yet, and its settings name none" in refused.stderr
    assert not data_dir.parent.exists()
    data_dir.mkdir(parents=True)
    goq(*serve, "--listen", address, code=2)
    assert data_dir.exists(), "a folder that was there before stays"


def test_serve_says_which_process_holds_the_folder(goq: Run, node: RunningNode) -> None:
    done = goq("serve", "--data-dir", str(node.data_dir), "--listen", "127.0.0.1:0", code=6)
    assert b"in use by process" in done.stderr


HEAVY = {"numpy", "pydantic", "rich.console", "yaml", "asyncio", "uvloop"}


@pytest.mark.parametrize("arguments", [["version"], ["produce", "TOPIC"], ["--help"]])
def test_short_commands_import_little(
    environment: dict[str, str], topic: str, arguments: list[str]
) -> None:
    arguments = [topic if word == "TOPIC" else word for word in arguments]
    code = (
        "import sys\n"
        "from goq_cli.main import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "sys.stderr.write('\\n'.join(m for m in sys.modules if sys.modules[m] is not None))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, input=b"x\n", capture_output=True, check=True
    )
    modules = set(done.stderr.decode().split())
    assert modules & HEAVY == set()
    assert len(modules) < (420 if arguments[0] == "produce" else 300), len(modules)
    commands = {name for name in modules if re.fullmatch(r"goq_cli\.commands\.\w+", name)}
    assert commands <= {f"goq_cli.commands.{arguments[0]}"}


def test_the_help_lists_each_command_with_what_it_is_for(goq: Run) -> None:
    listed = goq("--help").stdout.decode().partition("Commands:\n")[2]
    assert re.findall(r"^  (\w+)  ", listed, re.MULTILINE) == list(COMMANDS)
    assert "  topic       create, list, show, alter, delete topics\n" in listed


def test_every_command_and_option_has_help(goq: Run) -> None:
    for name in COMMANDS:
        assert len(goq(name, "--help").stdout) > 100, name


def test_a_group_that_shares_partitions_is_shown_with_its_members(
    goq: Run, node: RunningNode, topic: str
) -> None:
    goq("topic", "create", topic, "--partitions", "2")
    goq("consume", topic, "--group", "g", "--until-empty")
    plain = goq("group", "show", "g", "--topic", topic).stdout.decode()
    assert "session_timeout" not in plain
    goq("group", "set", "g", "--topic", topic, "ordering=partition")
    node.on_loop(lambda: _let_join(node, topic, "ann", "bob"))
    shown = goq("group", "show", "g", "--topic", topic).stdout.decode().splitlines()
    assert any(line.startswith("ann\t0\t\t20") and line.endswith("\t30s") for line in shown)
    assert any("2\tjoined\tbob\t1:ann>bob" in line for line in shown)
    membership = json.loads(goq("group", "show", "g", "--topic", topic, "--json").stdout)[
        "membership"
    ]
    assert [m["consumer"] for m in membership["members"]] == ["ann", "bob"]
    node.on_loop(lambda: _let_join(node, topic, *(f"more-{n}" for n in range(60))))
    long = goq("group", "show", "g", "--topic", topic).stdout.decode()
    assert long.count("\tjoined\t") == 50


def _let_join(node: RunningNode, name: str, *consumers: str) -> None:
    assert node.node.broker is not None
    topic = node.node.broker.topic(name)
    if topic.coordinator is None:
        topic.coordinator = Coordinator(FakeHost(2), node.node.broker.clock)
    for consumer in consumers:
        topic.coordinator.join("g", consumer)


def test_a_topic_shows_what_is_archived_of_it(goq: Run, topic: str, node: RunningNode) -> None:
    settings = ("archive=true", "segment.bytes=64KiB", "retention.bytes=64KiB")
    options = [word for setting in settings for word in ("--set", setting)]
    goq("topic", "create", topic, "--partitions", "1", *options)
    assert "archived" not in goq("topic", "show", topic).stdout.decode()
    lines = b"".join(b"%d" % number * 30_000 + b"\n" for number in range(9))
    goq("produce", topic, "--batch", "1", stdin=lines)
    eventually(lambda: "archived" in node.call("GET", f"/v1/topics/{topic}"), "it is archived")
    assert "archived segments" in goq("topic", "show", topic).stdout.decode()
    archived = json.loads(goq("topic", "show", topic, "--json").stdout)["archived"]
    assert archived["messages"] >= 3


def test_a_misspelt_name_is_told_with_the_one_that_is_close_to_it(goq: Run, topic: str) -> None:
    goq("topic", "create", topic)
    goq("produce", topic, stdin=b"a\n")
    goq("consume", topic, "--group", "billing", "--until-empty")
    said = goq("topic", "show", f"{topic}x", code=3).stderr.decode()
    assert f"did you mean {topic}" in said
    said = goq("group", "show", "biling", "--topic", topic, code=3).stderr.decode()
    assert "did you mean billing?" in said
    said = goq("topic", "alter", topic, "--set", "retension.age=1d", code=7).stderr.decode()
    assert "did you mean retention.age?" in said
    assert b"did you mean" not in goq("topic", "show", "quite-another", code=3).stderr
    goq("topic", "create", "shop")
    assert b"did you mean" not in goq("topic", "show", "quite-another", code=3).stderr
    said = goq("group", "show", topic, "--topic", "quite-another", code=3).stderr
    assert b"did you mean" not in said  # the group that is asked for is no topic


def test_a_setting_that_is_given_twice_is_refused(goq: Run, topic: str) -> None:
    twice = ("--set", "retention.age=3d", "--set", "retention.age=4d")
    assert b"given twice" in goq("topic", "create", topic, *twice, code=2).stderr


def test_the_program_tells_its_version_and_its_help_in_the_usual_ways(goq: Run) -> None:
    version = goq("version").stdout
    assert goq("--version").stdout == goq("-V").stdout == version
    assert goq().stdout == goq("-h").stdout == goq("--help").stdout
    assert b"Usage: goq" in goq().stdout
    assert goq("topic", "-h").stdout == goq("topic", "--help").stdout


def test_a_server_may_be_written_without_a_scheme_and_a_context_chosen_for_one_call(
    goq: Run, topic: str, node: RunningNode
) -> None:
    goq("topic", "create", topic)
    address = node.url.removeprefix("http://")
    assert topic in goq("topic", "list", GOQ_SERVER=address).stdout.decode()
    goq("context", "set", "here", "--server", address)
    goq("context", "set", "there", "--server", "127.0.0.1:1")
    assert topic in goq("topic", "list", "--context", "here").stdout.decode()
    assert b"there are: here, there" in goq("topic", "list", "--context=where", code=3).stderr


def test_a_command_that_needs_another_word_shows_its_help(goq: Run) -> None:
    said = goq("topic", code=2)
    assert said.stdout == b""
    assert said.stderr.startswith(b"Usage: goq topic ")
    assert said.stderr.endswith(b"http://127.0.0.1:8080.\n")


def test_an_audit_says_that_a_node_without_tokens_records_nothing(goq: Run, topic: str) -> None:
    goq("topic", "create", topic)
    done = goq("audit")
    assert done.stdout == b"time\twho\tfrom\taction\ton\tresult\n"
    assert b"records nothing" in done.stderr
    assert b"records nothing" in goq("audit", "--json").stderr
