"""The shape of the code, read from the tree: sizes, names, protocols, and how many modules a request passes.

A module is passed when one of its functions runs, in any thread, from the request to its answer; what runs at import is
not counted. Protocols are held against every class of `src`: an implementation inherits it, or has all its members;
a module may be one.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
import statistics
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import everthread
from benchmarks.table import Row
from everthread.compaction.engine import Services

PACKAGE = Path(everthread.__file__).parent
LARGEST_FOLDER, MEDIAN, GATEWAY_MODULES, SEND_MODULES = 20, (150, 250), 60, 50
LINES, FILES = 38_000, 200
MODEL = "claude-sonnet-4-5"
VERBAL_NOUNS = frozenset(
    word
    for line in (
        "pricing routing logging pruning accounting streaming testing string thing setting ping encoding decoding",
        "binding",
        "heading listing meaning mapping nesting padding timing wording building beginning warning ending",
        "training rating embedding reasoning thinking hashing caching ranking indexing polling paging pooling",
        "scaling spelling stemming handling floating incoming outgoing",
    )
    for word in line.split()
)
"""Words on -ing that are nouns of the field or no verbs at all."""
OUT = frozenset(
    word
    for line in (
        "told said made known found held telling noting beside alone patience seen kept given asked meant",
        "shown left",
    )
    for word in line.split()
)
"""Words of the project's past that say what was done to a thing, not what it is."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


@dataclass(frozen=True, slots=True)
class ClassFound:
    name: str
    module: str
    bases: tuple[str, ...]
    members: frozenset[str]

    @property
    def is_protocol(self) -> bool:
        return "Protocol" in self.bases

    @property
    def package(self) -> str:
        return self.module.split("/", maxsplit=1)[0]


def run() -> list[Row]:
    files = {path: path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    classes = [found for path, text in files.items() for found in _classes(path, ast.parse(text))]
    return [*_sizes(files), *_names(files, classes), *_protocols(classes, files), *_flows()]


# --- sizes ------------------------------------------------------------------------------------------------------------


def _code_lines(text: str) -> int:
    lines = text.splitlines()
    rest = {at for at, line in enumerate(lines, 1) if not line.strip() or line.lstrip().startswith("#")}
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Expr | ast.Import | ast.ImportFrom):
            continue
        value = node.value if isinstance(node, ast.Expr) else None
        if value is None or (isinstance(value, ast.Constant) and isinstance(value.value, str)):
            rest.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines) - len(rest)


def _sizes(files: dict[Path, str]) -> Iterator[Row]:
    lengths = {path: text.count("\n") for path, text in files.items()}
    lines = sum(lengths.values())
    yield Row("lines of Python in src", f"{lines:,}", f"about {LINES:,}", lines <= LINES * 1.05)
    code = sum(_code_lines(text) for text in files.values())
    yield Row("of them code: no blank line, docstring, import or comment", f"{code:,}")
    yield Row("files", str(len(files)), f"about {FILES}", len(files) <= FILES * 1.1)
    folders = Counter(path.parent.relative_to(PACKAGE.parent).as_posix() for path in files)
    largest = ", ".join(f"{name} {count}" for name, count in folders.most_common(5))
    most = folders.most_common(1)[0][1]
    yield Row("files in a folder, the five largest", largest, f"≤ {LARGEST_FOLDER}", most <= LARGEST_FOLDER)
    median = statistics.median(length for path, length in lengths.items() if path.name != "__init__.py")
    low, high = MEDIAN
    yield Row("median file, lines", f"{median:g}", f"{low}–{high}", low <= median <= high)
    longest = sorted(lengths, key=lambda path: -lengths[path])[:5]
    yield Row("longest files", ", ".join(f"{_module(path)} {lengths[path]}" for path in longest))


def _module(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").as_posix()


# --- names ------------------------------------------------------------------------------------------------------------


def _classes(path: Path, tree: ast.AST) -> Iterator[ClassFound]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = tuple(name for base in node.bases if (name := _base(base)))
            yield ClassFound(node.name, _module(path), bases, frozenset(_members(node)))


def _base(node: ast.expr) -> str:
    """`Protocol` of `Protocol[T]`, `Base` of `rooms.Base`."""
    if isinstance(node, ast.Subscript):
        return _base(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _members(node: ast.ClassDef) -> Iterator[str]:
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            yield item.name
            if item.name == "__init__":
                yield from _own_attributes(item)
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            yield item.target.id
        elif isinstance(item, ast.Assign):
            yield from (target.id for target in item.targets if isinstance(target, ast.Name))


def _own_attributes(function: ast.AST) -> Iterator[str]:
    """What `__init__` sets on `self`."""
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _base(node.value) == "self":
            yield node.attr


def _names(files: dict[Path, str], classes: list[ClassFound]) -> Iterator[Row]:
    public = [found for found in classes if not found.name.startswith("_")]
    overall = Counter(found.name for found in public)
    twice = sorted(name for name, count in overall.items() if count > 1)
    within = Counter((found.package, found.name) for found in public)
    here = sorted(f"{package}: {name}" for (package, name), count in within.items() if count > 1)
    yield Row("class names used twice in one package", _listed(here), "0", not here)
    yield Row("class names used twice in all", _listed(twice))
    modules = {_module(path).removesuffix("/__init__") for path in files}
    named = sorted(f"{name}.py" for name in modules if _is_verbal(name.rpartition("/")[2]))
    named += sorted({found.name for found in public if _is_verbal(found.name)})
    yield Row("modules and classes named by a participle or gerund", _listed(named), "0", not named)


def _is_verbal(name: str) -> bool:
    """The last word counts, and in a name of one word the only one: `StreamKeepAlive` is fine, `Telling` is not."""
    words = [word.lower() for word in _WORDS.findall(name)]
    last = words[-1] if words else ""
    return last in OUT or (last.endswith("ing") and last not in VERBAL_NOUNS)


def _listed(names: list[str], most: int = 12) -> str:
    shown = ", ".join(names[:most]) + (", …" if len(names) > most else "")
    return f"{len(names)} ({shown})" if names else "0"


# --- protocols --------------------------------------------------------------------------------------------------------


def _protocols(classes: list[ClassFound], files: Mapping[Path, str]) -> Iterator[Row]:
    modules = {_module(path): _defined_names(text) for path, text in files.items()}
    by_name: dict[str, list[ClassFound]] = defaultdict(list)
    for found in classes:
        by_name[found.name].append(found)
    lonely = []
    # What an engine is given is public too: plug-ins are written against it.
    public = {*everthread.__all__, *re.findall(r"\w+", " ".join(map(str, Services.__annotations__.values())))}
    for protocol in (found for found in classes if found.is_protocol):
        wanted = _all_members(protocol, by_name) - {"__init__"}
        if wanted == {"__call__"}:
            continue  # any function is one
        implementations = [
            found.name
            for found in classes
            if not found.is_protocol
            and (protocol.name in found.bases or (wanted and wanted <= _all_members(found, by_name)))
        ]
        implementations += [name for name, defined in modules.items() if wanted and wanted <= defined]
        if len(implementations) < 2 and protocol.name not in public:
            lonely.append(f"{protocol.module}.{protocol.name}")
    yield Row(
        "protocols with fewer than two implementations, outside the public names", _listed(lonely), "0", not lonely
    )


def _defined_names(text: str) -> set[str]:
    """The names that a module has: a module too can be what a protocol describes."""
    names: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return names


def _all_members(found: ClassFound, by_name: dict[str, list[ClassFound]], depth: int = 5) -> set[str]:
    """Its own and those it inherits, by the bases' names."""
    members = set(found.members)
    for base in found.bases if depth else ():
        for parent in by_name.get(base, ()) if base != "Protocol" else ():  # typing's, not a class of ours
            members |= _all_members(parent, by_name, depth - 1)
    return members


# --- flows ------------------------------------------------------------------------------------------------------------


@dataclass
class Trail:
    """The functions that ran while it is on. It only notes them: a request must not run into its time limit."""

    on: bool = False
    codes: set[CodeType] = field(default_factory=set)

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        if self.on and event == "call":
            self.codes.add(frame.f_code)

    def modules(self) -> set[str]:
        """Those of the package."""
        files = {code.co_filename for code in self.codes if not _runs_at_import(code)}
        return {_module(path) for file in files if (path := Path(file)).is_relative_to(PACKAGE)}


def _runs_at_import(code: CodeType) -> bool:
    """The body of a module or a class, or a comprehension in one: a request may be the first to need the module."""
    if code.co_name.startswith("<") and code.co_name != "<lambda>":
        return "<locals>" not in code.co_qualname
    return not code.co_flags & inspect.CO_OPTIMIZED


def _flows() -> Iterator[Row]:
    for name, flow, goal in (
        ("a managed gateway request with a compaction", _gateway_request, GATEWAY_MODULES),
        ("`Conversation.send` with a compaction", _conversation_send, SEND_MODULES),
    ):
        trail = Trail()
        threading.setprofile(trail)
        sys.setprofile(trail)
        try:
            asyncio.run(flow(trail))
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        passed = trail.modules()
        rooms = Counter(module.split("/", maxsplit=1)[0] for module in passed)
        each = ", ".join(f"{room} {count}" for room, count in rooms.most_common())
        count = len(passed)
        yield Row(f"modules passed by {name}", f"{count} ({each})", str(goal), count <= goal)


def _history(count: int) -> list[dict[str, Any]]:
    """An agent's work: requests, calls, results, answers; an error among them."""
    messages: list[dict[str, Any]] = []
    for number in range(count):
        call = {
            "type": "tool_use",
            "id": f"call_{number}",
            "name": "Bash",
            "input": {"command": f"pytest tests/{number}"},
        }
        outcome = f"tests/{number}: {'1 failed, ' if number % 5 == 4 else ''}{number} passed\n" * 12
        messages += [
            {"role": "user", "content": f"Mend ledger {number}; entry {number} of it was settled twice."},
            {"role": "assistant", "content": [{"type": "text", "text": "I run its tests first."}, call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"call_{number}", "content": outcome}]},
            {"role": "assistant", "content": f"Ledger {number} is mended: the entry is compared before it is settled."},
        ]
    return messages


async def _gateway_request(trail: Trail) -> None:
    import httpx2  # noqa: PLC0415 - only this flow needs it

    from everthread.config import parse_config  # noqa: PLC0415 - as above
    from everthread.factory.gateway import open_gateway  # noqa: PLC0415 - as above

    with tempfile.TemporaryDirectory() as folder:
        async with _upstream() as url:
            config = parse_config(
                "gateway:\n  port: 0\n  limits: {manage_seconds: 600}\n"
                f"  upstreams: [{{name: direct, url: '{url}', mode: managed}}]\n"
                f"store: {{url: 'sqlite:///{folder}/store.db'}}\n"
                "compression: {threshold_tokens: 10000, background: false, economics: false}\n"
            )
            async with open_gateway(config) as gateway, httpx2.AsyncClient(timeout=600) as client:
                compactions = "0"
                for turns in (10, 60):
                    trail.codes.clear()
                    trail.on = True
                    messages = [*_history(turns), {"role": "user", "content": "What is left?"}]
                    body = {"model": MODEL, "max_tokens": 100, "messages": messages}
                    answer = await client.post(f"{gateway.url}/v1/messages", json=body, headers={"x-api-key": "any"})
                    assert answer.status_code == 200, answer.text
                    compactions = answer.headers["x-everthread-compactions"]
                assert compactions != "0", "nothing was compacted"
                trail.on = False


@asynccontextmanager
async def _upstream() -> AsyncIterator[str]:
    """A provider that gives one short answer to everything."""
    answer = json.dumps(
        {
            "id": "msg_1", "type": "message", "role": "assistant", "model": MODEL, "stop_reason": "end_turn",
            "content": [{"type": "text", "text": "Nothing."}], "usage": {"input_tokens": 9, "output_tokens": 1},
        }
    ).encode()  # fmt: skip

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = re.search(rb"content-length: *(\d+)", head)
                await reader.readexactly(int(length[1]) if length else 0)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
                writer.write(b"content-length: %d\r\n\r\n%s" % (len(answer), answer))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 22)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _conversation_send(trail: Trail) -> None:
    from everthread.config import parse_config  # noqa: PLC0415 - only this flow needs it
    from everthread.testing import ScriptedModel  # noqa: PLC0415 - as above

    with tempfile.TemporaryDirectory() as folder:
        config = parse_config("compression: {threshold_tokens: 6000, background: false}\n")
        model = ScriptedModel(lambda _request: "It is mended: the entry is compared before it is settled.")
        conversation = await everthread.open_conversation(
            model, config=config, store=Path(folder) / "store.db", system="You keep the books."
        )
        first = conversation.session.id
        for number in range(400):
            text = f"Mend ledger {number}; " + f"entry {number} was settled twice and compared with its receipt. " * 8
            trail.on = True
            trail.codes.clear()
            await conversation.send(text)
            trail.on = False
            if conversation.session.id != first:
                break
        assert conversation.session.id != first, "nothing was compacted"
        await conversation.close()
