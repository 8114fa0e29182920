"""Every pattern in the package reads any text in linear time.

Each pattern reads repetitions of its own words, characters and repeated parts, up to 40 KB, within a limit of CPU time
that linear work does not come near and quadratic work exceeds many times over.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import everthread
from everthread.core.provider_errors.classification import classify_error
from everthread.core.search.terms import list_query_terms
from everthread.core.secrets.redaction import redact
from everthread.core.secrets.secret_rules import load_rules
from everthread.core.turns import user_text
from tests.chat_messages import user_message
from tests.cpu_limit import CPU_SECONDS, cpu_limit

parser: Any = importlib.import_module("re._parser")
constants: Any = importlib.import_module("re._constants")

SIZES = (1_000, 40_000)
MAX_WORDS = 4
"""Words tried of a long alternative, evenly spread."""
# There are many patterns, and the machine may be busy.
pytestmark = pytest.mark.timeout(900)
SOURCES = sorted(Path(everthread.__path__[0]).rglob("*.py"))


def module_names() -> list[str]:
    found = pkgutil.walk_packages(everthread.__path__, "everthread.")
    return [info.name for info in found if not info.name.endswith("__main__")]


def patterns_of(module: ModuleType) -> dict[str, re.Pattern[Any]]:
    """Return every pattern of a module by name: in constants, in their contents, in the results of cached functions."""
    found: dict[str, re.Pattern[Any]] = {}
    for name, held in vars(module).items():
        value = held
        if isinstance(value, ModuleType) or (
            callable(value) and value.__module__ != module.__name__
        ):
            continue
        if (
            isinstance(value, functools._lru_cache_wrapper)
            and not inspect.signature(value).parameters
        ):
            value = value()
        for place, pattern in enumerate(dict.fromkeys(patterns_in(value))):
            found[f"{name}[{place}]" if place else name] = pattern
    return found


def patterns_in(value: object, depth: int = 0) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif depth < 6:
        for part in parts_of(value):
            yield from patterns_in(part, depth + 1)


def parts_of(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, tuple | list | set | frozenset):
        return list(value)
    if isinstance(value, type) or type(value).__module__.startswith("everthread"):
        slots = getattr(type(value), "__slots__", ())
        return [
            *getattr(value, "__dict__", {}).values(),
            *(getattr(value, name, None) for name in slots),
        ]
    return ()


def literal_patterns(source: Path) -> Iterator[tuple[str, re.Pattern[str]]]:
    """Yield the patterns written as plain strings in calls: `re.sub(r"…", …)`."""
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "re"
            and node.func.attr != "compile"
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and isinstance(node.args[0].value, str)
        ):
            anchored = node.func.attr in ("match", "fullmatch")
            yield (
                f"{source.name}:{node.lineno}" + (" match" if anchored else ""),
                re.compile(node.args[0].value),
            )


@functools.cache
def whole_source() -> str:
    return "\n".join(source.read_text("utf-8") for source in SOURCES)


@functools.cache
def token_forms() -> frozenset[re.Pattern[str]]:
    """Return the patterns of tokens: each is tried only after its prefix was found."""
    return frozenset(
        form.pattern for forms in load_rules().forms_by_prefix.values() for _, form in forms
    )


def is_anchored(module: ModuleType, name: str, pattern: re.Pattern[Any]) -> bool:
    """Return whether a pattern is only matched at one position of a text, never searched for."""
    if pattern in token_forms():
        return True
    source = inspect.getsource(module) if name.startswith("_") else whole_source()
    uses = re.findall(rf"(?<![\w.]){re.escape(name)}\b(?! = |: )\.?(\w*)", source)
    return bool(uses) and set(uses) <= {"match", "fullmatch"}


REPEATS = (constants.MAX_REPEAT, constants.MIN_REPEAT, constants.POSSESSIVE_REPEAT)
ASSERTIONS = (constants.ASSERT, constants.ASSERT_NOT)
PALETTE = 'a1 -._/:"<{(=\t\nA中'


def characters(items: Any) -> list[str]:
    """Return some characters of a set."""
    one = re.compile(written_set(items))
    drawn = [
        chr(value if op is constants.LITERAL else value[0]) for op, value in items if op in DRAWN
    ]
    return [char for char in dict.fromkeys([*drawn, *PALETTE]) if one.match(char)][:4] or ["\0"]


DRAWN = (constants.LITERAL, constants.RANGE)
CATEGORIES = {
    constants.CATEGORY_DIGIT: r"\d",
    constants.CATEGORY_NOT_DIGIT: r"\D",
    constants.CATEGORY_SPACE: r"\s",
    constants.CATEGORY_NOT_SPACE: r"\S",
    constants.CATEGORY_WORD: r"\w",
    constants.CATEGORY_NOT_WORD: r"\W",
}


def written_set(items: Any) -> str:
    written = ""
    for op, value in items:
        if op is constants.NEGATE:
            written += "^"
        elif op is constants.LITERAL:
            written += re.escape(chr(value))
        elif op is constants.RANGE:
            written += f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
        else:
            written += CATEGORIES[value]
    return f"[{written}]"


def children(op: Any, value: Any) -> list[Any]:
    if op is constants.BRANCH:
        return list(value[1])
    if op is constants.SUBPATTERN:
        return [value[3]]
    if op in REPEATS:
        return [value[2]]
    if op is constants.ATOMIC_GROUP:
        return [value]
    return [value[1]] if op in ASSERTIONS else []


def example(tree: Any, pick: int = 0) -> str:
    """Return a short text that a part of a pattern matches; another one for each `pick`."""
    text = ""
    for op, value in tree:
        if op is constants.LITERAL:
            text += chr(value)
        elif op is constants.NOT_LITERAL:
            text += "b" if value == ord("a") else "a"
        elif op is constants.ANY:
            text += "a"
        elif op is constants.IN:
            some = characters(value)
            text += some[pick % len(some)]
        elif op in REPEATS:
            text += example(value[2], pick) * max(value[0], bool(pick))
        elif op not in ASSERTIONS:
            branches = children(op, value)
            text += example(branches[pick % len(branches)], pick) if branches else ""
    return text


def repeated_parts(tree: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """Yield the text before each repetition of a pattern, and some texts that it repeats."""
    for place, (op, value) in enumerate(tree):
        lead = before + example(tree[:place])
        if op in REPEATS and value[1] >= 16:
            yield from ((lead, example(value[2], pick)) for pick in range(2))
        for child in children(op, value):
            yield from repeated_parts(child, lead)


def words(tree: Any) -> Iterator[str]:
    """Yield the literal words and characters of a pattern."""
    run = ""
    for op, value in [*tree, (None, None)]:
        if op is constants.LITERAL:
            run += chr(value)
            continue
        yield run
        run = ""
        if op is constants.IN:
            yield from characters(value)[:2]
        for child in children(op, value):
            yield from words(child)


def hostile_texts(pattern: re.Pattern[Any]) -> list[tuple[str, str]]:
    """Return text prefixes, each with a text to repeat after it."""
    tree = parser.parse(pattern.pattern, pattern.flags)
    own = sorted(set(words(tree)) - {""})
    own = own[:: len(own) // MAX_WORDS + 1]
    found = [
        *repeated_parts(tree),
        *(("", word) for word in own),
        *(("", f"{word} ") for word in own),
    ]
    found += [("", lead + part) for lead, part in repeated_parts(tree) if lead] + [
        ("", example(tree))
    ]
    return [
        (lead, part)
        for lead, part in dict.fromkeys([*found, *(("", char) for char in "a \n")])
        if part
    ]


def read_all(pattern: re.Pattern[Any], text: Any) -> None:
    for _ in pattern.finditer(text):
        pass


def read_at_once(pattern: re.Pattern[Any], text: Any) -> None:
    pattern.match(text)
    pattern.fullmatch(text)


def expect_linear(
    name: str, pattern: re.Pattern[Any], read: Callable[[re.Pattern[Any], Any], None]
) -> None:
    for lead, part in hostile_texts(pattern):
        for size in SIZES:
            text = lead + part * (size // len(part) + 1) + "\0"
            with cpu_limit(f"{name} on {lead!r} and {part!r} up to {size} characters"):
                read(
                    pattern,
                    text.encode() if isinstance(pattern.pattern, bytes) else text,
                )


@pytest.mark.parametrize("module", module_names())
def test_every_pattern_is_linear(module: str) -> None:
    spec = importlib.util.find_spec(module)
    assert spec
    assert spec.origin
    for name, pattern in literal_patterns(Path(spec.origin)):
        expect_linear(name, pattern, read_at_once if name.endswith(" match") else read_all)
    try:
        loaded = importlib.import_module(module)
    except ImportError as missing:
        pytest.skip(f"needs {missing.name}")
    for name, pattern in patterns_of(loaded).items():
        expect_linear(
            f"{module}.{name}",
            pattern,
            read_at_once if is_anchored(loaded, name, pattern) else read_all,
        )


READERS: dict[str, Callable[[str], object]] = {
    "redact": redact,
    "classify_error": lambda text: classify_error(body=text),
    "query_terms": list_query_terms,
    "user_text": lambda text: user_text(user_message(text)),
}
PIECES = (
    "please ",
    "no, ",
    "?",
    "? x",
    " ",
    "\t",
    "\n",
    "a",
    "1",
    "1,",
    "-",
    "/",
    "\\",
    "'",
    '"',
    "<a>",
    "<a ",
    "{",
    "[",
    "<system-reminder>",
    "password=",
    "key: ",
    "-----begin private key-----",
    "-----begin",
    "://a:",
    "curl -u a:",
    "authorization: bearer ",
    "tokens ",
    "maximum ",
    "exceed ",
    "128,000 ",
    "中",
    "。",
    "密码",
)


@pytest.mark.parametrize("reader", READERS)
def test_repeated_input_is_read_in_linear_time(reader: str) -> None:
    for piece in PIECES:
        for size in SIZES:
            text = piece * (size // len(piece) + 1) + "\0"
            with cpu_limit(f"{reader} on {piece!r} up to {size} characters", 2 * CPU_SECONDS):
                found = READERS[reader](text)
            assert found is not None


def test_repeated_token_prefixes_are_redacted_in_linear_time() -> None:
    starts = {start for forms in load_rules().forms_by_prefix.values() for start, _ in forms}
    for start in sorted(starts):
        for joint in "-/":
            with cpu_limit(f"redact on {start + joint!r}"):
                shown = redact((start + joint) * (8_000 // len(start + joint)) + "_\0")
            assert shown.endswith("\0")


def test_detects_quadratic_and_exponential_patterns() -> None:
    for pattern in (r"\s+$", r"(?:\W*(?:please|ok)\b[, ]*)*!", r"a.*b.*c"):
        with pytest.raises(AssertionError, match="CPU time"):
            expect_linear("bad", re.compile(pattern), read_all)
