"""What a shell command line does, told from its words: it looks, tests, checks or changes; where, to which files."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from everthread.core.mentions import PATH, mentions

LOOK, TEST, CHECK, RUN = "LOOK", "TEST", "CHECK", "RUN"
READ_CHARS = 2_000
"""How much of a command is read: what follows is the text of a script."""

_WORD = re.compile(
    r"""(?P<op>&&|\|\||>>|\d?>&\d|&>|\d?>|<<-?|[;|&\n<>])|(?P<word>(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"&|;<>\\]|['"\\])+)""",
    re.DOTALL,
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LOOKS = _words(
    "grep egrep rg ag find fd ls cat head tail less more sed awk wc tree stat file du df pwd which whereis type date "
    "env printenv whoami hostname uname ps top free jq sort uniq cut diff cmp nl tac column strings xxd od md5sum "
    "sha256sum readlink realpath basename dirname lsof netstat ss history man help id groups uptime"
)
_GIT_LOOKS = _words("status log diff show branch ls-files blame rev-parse remote describe shortlog grep")
_SETS_UP = _words("cd pushd popd export source . set unset echo printf true : mkdir sleep wait umask ulimit")
_WRAPPERS = _words("sudo time env nohup exec command npx bunx xargs nice stdbuf uvx pnpx doas")
_RUNNERS = {"uv": "run", "poetry": "run", "pipenv": "run", "pdm": "run", "hatch": "run", "rye": "run", "bundle": "exec"}
_TESTERS = _words(
    "pytest jest vitest mocha ava tox nox ctest rspec phpunit unittest behave karma cypress py.test nose2 bats"
)
_CHECKERS = _words(
    "mypy ruff flake8 pylint pyright eslint tsc tsgo biome prettier black isort clippy shellcheck gcc g++ clang cc "
    "javac rustc cmake ninja tsup webpack vite rollup esbuild golangci-lint"
)
_TASKS = re.compile(r"(tests?|spec|e2e)|(check|lint|typecheck|type-check|verify|build|compile|vet|clippy)", re.ASCII)
_TASK_RUNNERS = _words(
    "npm yarn pnpm bun make cargo go gradle gradlew mvn dotnet mix rake deno just bazel swift flutter ant sbt task nx "
    "turbo invoke composer"
)


@dataclass(frozen=True, slots=True)
class Segment:
    """One program of a command line with its words; `piped`: it only filters what another one put out."""

    words: tuple[str, ...]
    piped: bool = False

    @property
    def program(self) -> str:
        return self.words[0].rpartition("/")[2] if self.words else ""

    @property
    def text(self) -> str:
        return " ".join(self.words)


@dataclass(frozen=True, slots=True)
class Command:
    """A command line. `act` is what it does at most; `jobs` are the segments that count, in order."""

    line: str
    act: str
    jobs: tuple[Segment, ...]
    directory: str = ""
    """Where it went, when that is an absolute place."""
    filtered: bool = False
    """Its output went through `grep`, whose exit code says nothing about the job."""
    background: bool = False
    files: tuple[tuple[str, str], ...] = ()
    """(what was done, path) of every file it names."""

    def settles(self, failed: Command) -> bool:
        """Whether success of this command means that the other one, which failed, works now."""
        if not failed.jobs:
            return False
        job = failed.jobs[-1]
        return any(job.words == own.words or _covers(own, job) for own in self.jobs)


@functools.lru_cache(maxsize=4096)
def understood(line: str) -> Command:
    """What a command line does."""
    words = _segments(line[:READ_CHARS])
    jobs = tuple(segment for segment in words.segments if not segment.piped and segment.program not in _SETS_UP)
    acts = [_act(segment) for segment in jobs]
    if words.writes:
        acts.append(RUN)
    act = next((act for act in (TEST, CHECK, RUN) if act in acts), LOOK)
    heavy = tuple(job for job, kind in zip(jobs, acts, strict=False) if kind != LOOK)
    moves = [segment.words[1] for segment in words.segments if segment.program == "cd" and len(segment.words) > 1]
    directory = next((place for place in reversed(moves) if place.startswith(("/", "~"))), "")
    filtered = any(segment.piped and segment.program in ("grep", "egrep", "rg") for segment in words.segments)
    return Command(line, act, heavy or jobs, directory, filtered, words.background, _files(words))


@dataclass(frozen=True, slots=True)
class _Split:
    segments: tuple[Segment, ...]
    writes: tuple[str, ...]
    """Files that output was sent to."""
    background: bool


def _segments(line: str) -> _Split:
    """The programs of a line. What follows `<<` is a script's text and belongs to none."""
    found: list[Segment] = []
    writes: list[str] = []
    words: list[str] = []
    piped = target = background = False
    heredoc = line.find("<<")
    end = line.find("\n", heredoc) if heredoc >= 0 else -1
    for match in _WORD.finditer(line, 0, end if end >= 0 else len(line)):
        operator, word = match["op"], match["word"]
        if word is not None:
            if target:
                writes += [_bare(word)] if word != "/dev/null" else []
            else:
                words.append(_bare(word))
            target = False
        elif operator in (">", ">>", "1>", "&>"):
            target = True
        elif operator in ("&&", "||", ";", "|", "&", "\n"):
            found += [Segment(_unwrapped(words), piped)] if words else []
            words, piped = [], operator == "|"
            background = background or operator == "&"
    found += [Segment(_unwrapped(words), piped)] if words else []
    return _Split(tuple(found), tuple(writes), background and not words)


def _bare(word: str) -> str:
    return word[1:-1] if len(word) > 1 and word[0] in "'\"" and word[-1] == word[0] else word


_SETTING = re.compile(r"[A-Za-z_]\w*=")


def _unwrapped(words: list[str]) -> tuple[str, ...]:
    """The words from the program on that does the work: without settings, `sudo`, `timeout 30`, `python -m`."""
    place = 0
    while place < len(words) - 1:
        word = words[place]
        name = word.rpartition("/")[2]
        if _SETTING.match(word) or name in _WRAPPERS or (place and word.startswith("-")):
            place += 1
        elif name == "timeout" or _RUNNERS.get(name) == words[place + 1] or _runs_module(name, words[place + 1]):
            place += 2
        else:
            break
    return tuple(words[place:])


def _runs_module(name: str, following: str) -> bool:
    return name.startswith("python") and following == "-m"


def _act(segment: Segment) -> str:
    program, words = segment.program, segment.words
    if program in _TESTERS:
        return TEST
    if program in _CHECKERS:
        return CHECK
    if program in _TASK_RUNNERS:
        tasks = [task for word in words[1:4] if (task := _TASKS.match(word.removeprefix("-")))]
        return TEST if any(task[1] for task in tasks) else CHECK if tasks else RUN
    if program == "git":
        return LOOK if len(words) > 1 and words[1] in _GIT_LOOKS else RUN
    if program in _LOOKS:
        edits = (program == "sed" and any(word.startswith("-i") for word in words)) or "-delete" in words
        return RUN if edits else LOOK
    return RUN


def _covers(whole: Segment, part: Segment) -> bool:
    """Whether a run of a program takes in another one of it: the whole suite, or a folder of what that one was for."""
    if whole.program != part.program or _act(part) not in (TEST, CHECK):
        return False
    wide, narrow = _plain(whole), _plain(part)
    return bool(narrow) and all(any(_within(target, place) for place in wide) for target in narrow) if wide else True


def _within(target: str, place: str) -> bool:
    return target == place or target.startswith((place.rstrip("/") + "/", place + "::"))


def _plain(segment: Segment) -> list[str]:
    return [word for word in segment.words[1:] if not word.startswith("-")]


_CHANGES = {"rm": "deleted", "mv": "moved", "cp": "copied", "touch": "created", "tee": "written", "chmod": "changed"}


def _files(split: _Split) -> tuple[tuple[str, str], ...]:
    """Every file the line names, and what happens to it."""
    found: dict[str, str] = {path: "written" for path in split.writes if _is_file(path)}
    for segment in split.segments:
        verb = _CHANGES.get(segment.program, "edited" if segment.program == "sed" and _act(segment) == RUN else "used")
        words = _targets(segment)
        kept = words[-1:] if verb in ("moved", "copied") else words
        found |= {word: "used" for word in words if word not in found} | dict.fromkeys(kept, verb)
    return tuple((verb, path.removeprefix("./")) for path, verb in found.items())


def _targets(segment: Segment) -> list[str]:
    """The words that are files; what a search is for and where a shell goes is none."""
    if segment.program in ("cd", "pushd"):
        return []
    words = [
        word
        for before, word in zip(("", *segment.words), segment.words, strict=False)
        if word != segment.words[0] and not word.startswith("-") and before not in ("-name", "-iname", "-path")
    ]
    searched = 1 if segment.program in ("grep", "egrep", "rg", "ag", "sed", "awk") else 0
    return [word for word in words[searched:] if _is_file(word)]


def _is_file(word: str) -> bool:
    bare = word.removeprefix("./")
    return not _PATTERN.search(word) and (PATH, bare) in mentions(bare)


_PATTERN = re.compile(r"[*?$(){}\[\]]")
