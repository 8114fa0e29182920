"""Rules, remembered answers, and no user to ask."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.agent.approval import (
    ApprovalAnswer,
    Approvals,
    Denial,
    Rule,
    parse_rule,
    parse_rules,
    read_rules,
    split_plain_command,
    write_rule,
)
from everthread.agent.tool_interface import Permission
from everthread.errors import InputError

COMPOUND = [
    "{} && rm -rf x",
    "{}; rm x",
    "{} | sh",
    "{} || rm x",
    "{} & rm x",
    "{}\nrm x",
    "{} > x",
    "{} < x",
    "{} >> x",
    "{} 2>&1",
    "{} $(rm x)",
    "{} `rm x`",
    "{} ${{IFS}}x",
    "{} $HOME",
    "({})",
    "{{ {}; }}",
    "{} <(rm x)",
    "{}\r\nrm x",
    '{} "$(rm x)"',
    "{} 'a;b'",
    "{} \\\nrm",
    "{} {{a,b}}",
    "! {}",
    "{}\0rm",
    "{}\u2028rm x",
    "{} 'open",
    "{} # x",
    "{} (",
    "{} )",
    "{} {{",
    "{} }}",
    "{} !",
    "{} ()",
]


def rule_allows(rule: str, target: str, kind: Literal["command", "write"] = "command") -> bool:
    return parse_rule(rule).allows(Permission(kind, target))


@pytest.mark.parametrize("form", COMPOUND)
@pytest.mark.parametrize("rule", ["pytest *", "pytest -q"])
def test_no_rule_matches_a_compound_command(rule: str, form: str) -> None:
    assert rule_allows(f"command: {rule}", "pytest -q")
    assert not rule_allows(f"command: {rule}", form.format("pytest -q"))


@pytest.mark.parametrize(
    ("rule", "command", "allowed"),
    [
        ("git status", "git status", True),
        ("git status", "git   status ", True),
        ("git status", "git 'status'", True),
        ("git status", "git status -s", False),
        ("git status", "git", False),
        ("git status", "git statuses", False),
        ("pytest *", "pytest", True),
        ("pytest *", "pytest tests/ -q -k 'a or b'", True),
        ("pytest *", "pytestx", False),
        ("pytest *", "PYTHONPATH=evil pytest", False),
        ("pytest *", "/opt/evil/pytest", False),
        ("pytest *", "./pytest", False),
        ("npm run *", "npm run build", True),
        ("npm run *", "npm install", False),
        ("cat docs/*.md", "cat docs/a.md", True),
        ("cat docs/*.md", "cat docs/sub/a.md", False),
        ("cat docs/**/*.md", "cat docs/sub/a.md", True),
        ("cat docs/**", "cat docs/../secret", False),
        ("cat docs/*", "cat docs/.[.]", False),
        ("cat *.md x", "cat ~root.md x", False),
        ("deploy * --dry-run", "deploy prod --dry-run", True),
        ("deploy * --dry-run", "deploy prod", False),
        ("deploy * --dry-run", "deploy #x --dry-run", False),
    ],
)
def test_command_rules_match(rule: str, command: str, allowed: bool) -> None:
    assert rule_allows(f"command: {rule}", command) is allowed


@pytest.mark.parametrize(
    ("rule", "path", "allowed"),
    [
        ("src/**", "src/a/b.py", True),
        ("src/**", "src/a.py", True),
        ("src/**", "srcs/a.py", False),
        ("src/**", "src", False),
        ("src/*", "src/a/b.py", False),
        ("**/*.md", "README.md", True),
        ("**/*.md", "docs/a/b.md", True),
        ("*.md", "docs/a.md", False),
        ("**", "x/y", True),
        ("**", ".git/hooks/pre-commit", False),
        ("**", "sub/.git/config", False),
        (".git/**", ".git/info/exclude", True),
        ("src/**", "src/a\nb", True),
        ("src/[ab].py", "src/a.py", True),
        ("src/[!a].py", "src/a.py", False),
    ],
)
def test_write_rules_match(rule: str, path: str, allowed: bool) -> None:
    assert rule_allows(f"write: {rule}", path, "write") is allowed


def test_a_rule_applies_to_its_kind_only() -> None:
    assert not rule_allows("write: **", "pytest")
    assert not rule_allows("command: pytest *", "pytest", "write")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pytest",
        "command:",
        "read: x",
        "command: a; b",
        "command: *",
        "command: pyt* x",
        "write: /etc/*",
        "write: ../x",
        "write: ~/x",
        "command: a && b",
        "command: $X",
        "command: 'open",
    ],
)
def test_bad_rules_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_rule(text)


WORDS = st.text(st.sampled_from("ab -'\"\\ \t~=*?[]#%,.:/@^+é"), max_size=20)


@given(tail=WORDS)
def test_plain_words_agree_with_the_shell(tail: str) -> None:
    """The words a rule is matched against are those the program gets (file names put in for patterns aside)."""
    words = split_plain_command(f"pytest {tail}")
    if words is None:
        return
    script = f"set -f; pytest() {{ printf '%s\\0' \"$@\"; }}; HOME='~' ; pytest {tail}"
    result = subprocess.run(["bash", "-c", script], capture_output=True, check=False)
    shell_words = result.stdout.decode().split("\0")[:-1] if words[1:] else []
    if not any(word.startswith("~") for word in words):
        assert shell_words == words[1:]
    assert not result.stderr


@given(st.text(max_size=80))
def test_an_allowed_command_is_always_one_program(text: str) -> None:
    permission = Permission("command", f"pytest {text}")
    if Rule("command", "pytest *").allows(permission):
        assert shlex.split(permission.target)[0] == "pytest"
        assert not set(";&|<>()`$\n\r\0") & set(permission.target)


def test_rules_are_read_from_the_home(tmp_path: Path) -> None:
    assert read_rules(tmp_path) == ()
    (tmp_path / "approvals.txt").write_text("# mine\n\ncommand: git status\nwrite: src/**\n")
    assert [str(rule) for rule in read_rules(tmp_path)] == [
        "command: git status",
        "write: src/**",
    ]
    (tmp_path / "approvals.txt").write_text("command: a | b\n")
    with pytest.raises(InputError, match=r"approvals\.txt: the rule"):
        read_rules(tmp_path)
    (tmp_path / "approvals.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot be read"):
        read_rules(tmp_path)


class ScriptedUser:
    """A user who gives these answers in turn, and records the questions."""

    def __init__(self, *answers: ApprovalAnswer) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.at_once = 0
        self.most_at_once = 0

    async def __call__(self, permission: Permission) -> ApprovalAnswer:
        self.asked.append(permission.target)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        return self.answers.pop(0)


async def test_only_what_no_rule_allows_is_asked() -> None:
    user = ScriptedUser(True, False)
    approvals = Approvals(parse_rules(["command: ls *"]), user)
    assert await approvals(Permission("command", "ls -l"))
    assert await approvals(Permission("command", "make"))
    assert not await approvals(Permission("command", "make"))
    assert user.asked == ["make", "make"]


async def test_always_applies_to_the_same_action_only() -> None:
    user = ScriptedUser("always", False, "always", True)
    approvals = Approvals((), user)
    assert await approvals(Permission("command", "make; ls"))
    assert await approvals(Permission("command", "make; ls"))
    assert not await approvals(Permission("command", "make; ls", "in sub"))
    assert await approvals(Permission("write", "a.py", "-1"))
    assert await approvals(Permission("write", "a.py", "-2"))
    assert await approvals(Permission("write", "b.py"))
    assert user.asked == ["make; ls", "make; ls", "a.py", "b.py"]


async def test_questions_come_one_at_a_time_and_an_answer_may_decide_others() -> None:
    user = ScriptedUser("always", True)
    approvals = Approvals((), user)
    permissions = [Permission("command", name) for name in ("make", "make", "tox")]
    assert await asyncio.gather(*map(approvals, permissions)) == [True, True, True]
    assert (user.asked, user.most_at_once) == (["make", "tox"], 1)


async def test_without_a_user_the_rest_is_refused() -> None:
    approvals = Approvals(["command: ls"])
    assert await approvals(Permission("command", "ls"))
    assert not await approvals(Permission("command", "pytest -q"))
    explanation = approvals.explain_refusal(Permission("command", "pytest -q"))
    assert "nobody is there to approve" in explanation
    assert "`command: pytest -q` in approvals.txt" in explanation
    assert "--yes" in explanation
    assert "compound" in approvals.explain_refusal(Permission("command", "a && b"))
    assert "`write: src/a.py`" in approvals.explain_refusal(Permission("write", "src/a.py"))


async def test_yes_allows_everything() -> None:
    assert await Approvals(allow_everything=True)(Permission("command", "a && b > c"))


@pytest.mark.parametrize("target", ["a*b.py", "x[1].py", "pytest -q", "a\nb"])
def test_the_suggested_rule_allows_the_refused_call(target: str) -> None:
    permission = Permission("write", target)
    explanation = Approvals().explain_refusal(permission)
    rule = explanation.partition("`")[2].partition("`")[0]
    assert parse_rule(rule).allows(permission) if target.isprintable() else not rule


def test_a_rule_holds_at_the_top_of_the_workspace_only() -> None:
    """`make test` in a folder that may be written runs another Makefile."""
    rule = parse_rule("command: make *")
    elsewhere = Permission("command", "make test", "in src")
    assert rule.allows(Permission("command", "make test"))
    assert not rule.allows(elsewhere)
    assert "top of the workspace" in Approvals([rule]).explain_refusal(elsewhere)


async def test_always_writes_a_rule_if_one_can_express_it(tmp_path: Path) -> None:
    user = ScriptedUser("always", "always", "always")
    approvals = Approvals((), user, store_rule=lambda rule: write_rule(tmp_path, rule))
    for permission in (
        Permission("command", "pytest tests"),
        Permission("command", "a; b"),
        Permission("write", "src/a[1].py"),
    ):
        assert await approvals(permission)
    assert (tmp_path / "approvals.txt").read_text(
        "utf-8"
    ) == "command: pytest tests\nwrite: src/a\\[1].py\n"
    later = Approvals(read_rules(tmp_path))
    assert await later(Permission("command", "pytest tests"))
    assert await later(Permission("write", "src/a[1].py"))
    assert not await later(Permission("command", "a; b"))
    write_rule(tmp_path, parse_rule("command: pytest tests"))
    assert (tmp_path / "approvals.txt").read_text("utf-8").count("pytest") == 1


async def test_the_reason_of_a_denial_is_passed_to_the_model() -> None:
    approvals = Approvals((), ScriptedUser(Denial("use the staging database"), False))
    permission = Permission("command", "psql prod")
    assert not await approvals(permission)
    assert approvals.explain_refusal(permission).endswith("The user says: use the staging database")
    assert not await approvals(permission)
    assert "The user says" not in approvals.explain_refusal(permission)


COMMANDS_WITH_WILDCARDS = [
    (
        "tar cf b.tar *",
        "tar cf b.tar --checkpoint=1 --checkpoint-action=exec=sh\\ evil.sh x",
    ),
    ("chown root *", "chown root --reference=evil x"),
    ("rsync -a host:x *", "rsync -a host:x -e sh\\ evil.sh"),
    ("git add *", "git add --all"),
    ("zip a.zip *", "zip a.zip -T -TT sh\\ evil.sh x"),
    ("rm *", "rm -rf /"),
    ("ls '*'", "ls -la"),
    ("cat docs/*.md", "cat docs/other.md"),
    ("cat a?c", "cat abc"),
    ("cat [ab]", "cat a"),
]


@pytest.mark.parametrize(("approved", "other"), COMMANDS_WITH_WILDCARDS)
async def test_always_on_a_command_with_a_wildcard_allows_that_command_only(
    approved: str, other: str, tmp_path: Path
) -> None:
    """The star of `tar cf b.tar *` must not match any further words once the command is stored as a rule."""
    approvals = Approvals(
        (),
        ScriptedUser("always", False, False),
        store_rule=lambda rule: write_rule(tmp_path, rule),
    )
    assert await approvals(Permission("command", approved))
    assert await approvals(Permission("command", approved))
    assert not await approvals(Permission("command", other))
    assert not await approvals(Permission("command", approved, "in sub"))
    later = Approvals(read_rules(tmp_path))
    assert await later(Permission("command", approved))
    assert not await later(Permission("command", other))
    assert not await later(Permission("write", approved))


def test_a_wildcard_in_a_typed_rule_matches() -> None:
    assert rule_allows("command: tar cf b.tar *", "tar cf b.tar x y")
    assert rule_allows("exactly: tar cf b.tar *", "tar cf b.tar *")
    assert not rule_allows("exactly: tar cf b.tar *", "tar cf b.tar x")
    with pytest.raises(InputError):
        parse_rule("exactly: a; b")
