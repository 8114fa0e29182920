"""What a command line does, and how a call went, told from words alone."""

from __future__ import annotations

import pytest

from everthread.compaction.summarizers.extract_commands import CHECK, LOOK, RUN, TEST, understood
from everthread.compaction.summarizers.extract_outcomes import Outcome, outcome
from everthread.core.errorlines import says_nothing
from everthread.core.messages import Call
from everthread.core.toolkinds import action_of


@pytest.mark.parametrize(
    ("line", "act"),
    [
        ("ls -la", LOOK),
        ("cd /srv && grep -rn 'a && b; c' src | head -5", LOOK),
        ("git log --oneline -5", LOOK),
        ("find . -name '*.py' -type f 2>/dev/null", LOOK),
        ("sed -n 1,20p file.py", LOOK),
        ("sed -i '' 's/a/b/' file.py", RUN),
        ("find . -name '*.pyc' -delete", RUN),
        ("git commit -m 'ls; grep'", RUN),
        ("git", RUN),
        ("cat > out.txt << 'EOF'\nls\nEOF", RUN),
        ("echo hi >> notes.txt", RUN),
        ("./deploy.sh", RUN),
        ("", LOOK),
        ("cd /srv", LOOK),
        ("pytest -q", TEST),
        ("CI=1 timeout 60 uv run python -m pytest tests", TEST),
        ("sudo -E npx jest --ci", TEST),
        ("npm run test:unit -- --watch=false", TEST),
        ("cargo test", TEST),
        ("make check", CHECK),
        ("npm run build 2>&1 | tail -3", CHECK),
        ("go vet ./...", CHECK),
        ("npx tsc --noEmit", CHECK),
        ("npm install", RUN),
        ("make check && pytest -q", TEST),
    ],
)
def test_what_a_line_does(line: str, act: str) -> None:
    assert understood(line).act == act


def test_where_a_line_goes() -> None:
    assert understood("cd /srv/shop && ls").directory == "/srv/shop"
    assert understood("cd ~/shop; cd sub; make").directory == "~/shop"
    assert understood("cd sub && make").directory == ""
    assert understood("cd").directory == ""


def test_what_goes_on_in_the_background() -> None:
    assert understood("npm run dev &").background
    assert understood("nohup ./serve > log.txt 2>&1 &").background
    assert not understood("sleep 1 & wait").background
    assert not understood("a && b").background


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ("rm -f ./old.py", {("deleted", "old.py")}),
        ("mv src/a.py src/b.py", {("used", "src/a.py"), ("moved", "src/b.py")}),
        ("cp src/a.py /srv/b.py", {("used", "src/a.py"), ("copied", "/srv/b.py")}),
        ("cat > notes/x.md << EOF\nsee other.py\nEOF", {("written", "notes/x.md")}),
        ("sed -i 's/a.py/b.py/' src/main.py", {("edited", "src/main.py")}),
        ("grep -n 'setup.py' README.md", {("used", "README.md")}),
        ("find src -name 'main.py'", set()),
        ("cd src/lib.d && ls *.py", set()),
        ("python scripts/run.py --out $HOME/x.json", {("used", "scripts/run.py")}),
        ("make > /dev/null", set()),
    ],
)
def test_which_files_a_line_names(line: str, files: set[tuple[str, str]]) -> None:
    assert set(understood(line).files) == files


@pytest.mark.parametrize(
    ("failed", "later", "settled"),
    [
        ("npm run check", "cd /x && npm run check 2>&1 | tail -3", True),
        ("pytest tests/a.py::test_x", "pytest tests/a.py", True),
        ("pytest tests/a.py", "pytest", True),
        ("pytest tests/a.py", "pytest tests/b.py", False),
        ("pytest tests/ab.py", "pytest tests/a", False),
        ("git add . && git commit -m x", "git commit -m x", True),
        ("git push", "git status", False),
        ("./deploy.sh a", "./deploy.sh b", False),
        ("cd /x", "cd /x", False),
    ],
)
def test_what_success_settles(failed: str, later: str, settled: bool) -> None:
    assert understood(later).settles(understood(failed)) is settled


def test_hostile_lines_are_read_in_time() -> None:
    for line in ("'" * 100_000, '"\\' * 50_000, "a && " * 50_000, "<<" * 50_000, "\\" * 99_999):
        assert understood(line).line == line


def told(command: str, output: str, *, failed: bool = False) -> Outcome:
    action = action_of(Call("c", "bash", '{"command": "x"}'))
    assert action is not None
    return outcome(action, understood(command), output, failed=failed)


@pytest.mark.parametrize(
    ("output", "names"),
    [
        ("FAILED tests/a.py::test_x - assert 0\n1 failed\nexit code: 1", ("tests/a.py::test_x",)),
        ("tests/a.py::test_x FAILED\n1 failed, 2 passed", ("tests/a.py::test_x",)),
        ("FAIL: test_x (tests.a.Case)\nRan 3 tests\nFAILED (failures=1)\n[exit 1]", ("test_x (tests.a.Case)",)),
        ("--- FAIL: TestX (0.00s)\nFAIL\tpkg\t0.1s\nexit status 1", ("TestX",)),
        ("test a::x ... FAILED\ntest result: FAILED. 1 passed; 1 failed; 0 ignored", ("a::x",)),
        ("  ✕ adds numbers (5 ms)\nTests: 1 failed, 3 passed, 4 total", ("adds numbers",)),
        ("  ● shop › adds a cart\n1 failed", ("shop › adds a cart",)),
        ("not ok 3 - keeps order\n# fail 1", ("keeps order",)),
        ("1) Shop\\CartTest::testAdd\nFailures: 1", ("Shop\\CartTest::testAdd",)),
    ],
)
def test_failing_tests_are_named(output: str, names: tuple[str, ...]) -> None:
    found = told("npm test", output)
    assert found.failed
    assert found.failing == names


@pytest.mark.parametrize(
    ("command", "output", "text", "failed"),
    [
        ("pytest", "5 passed in 0.1s\n[exit code 0]", "5 passed", False),
        ("make", "cc x.c\nlinked\n", "linked", False),
        ("npm run build", "many\nlines", "ok", False),
        ("ls", "a\nb\nc", "3 lines", False),
        ("git rev-parse HEAD", "45ffe0a", "45ffe0a", False),
        ("rm x", "", "no output", False),
        ("npm run check | grep error", "[exit code 1]", "ok", False),
        ("npm run check | grep error", "a.ts(1,2): error TS1: bad", "a.ts(1,2): error TS1: bad", True),
        ("./x", "working\nCommand timed out after 60s", "timed out", True),
        ("./x", "boom: fatal error\n[exit code 3]", "exit 3, boom: fatal error", True),
        ("cat log.txt", "it speaks of Error: x\nand of more\n[exit code 0]", "3 lines", False),
    ],
)
def test_how_a_command_went(command: str, output: str, text: str, failed: bool) -> None:
    found = told(command, output)
    assert text in found.text
    assert found.failed is failed


def test_a_result_that_says_it_failed() -> None:
    assert told("./x", "nothing", failed=True).failed
    action = action_of(Call("c", "edit", '{"path": "a.py", "old_string": "x"}'))
    assert action is not None
    assert outcome(action, None, "no match in the file", failed=True).errors == ("no match in the file",)
    assert not outcome(action, None, "Edited a.py", failed=False).failed


@pytest.mark.parametrize("line", ["Command exited with code 1", "exit status: 2", "== 2 failed, 3 passed in 0.3s =="])
def test_lines_that_only_say_that_there_was_an_error(line: str) -> None:
    assert says_nothing(line)
    assert not says_nothing(f"{line} for account 7")
