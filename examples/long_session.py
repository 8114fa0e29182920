"""A long, varied coding session, made up and always the same: `python examples/long_session.py [FILE]`.

An engineer and an agent build `ledgerline`, a small double-entry bookkeeping service, over several hundred messages:
searches, file reads, edits, failing and passing tests, logs, parallel calls, an interrupted turn, rules, decisions and
a decision taken back, mostly in English, partly in Chinese. The conversation is a request body in OpenAI chat form.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

Message = dict[str, Any]

SYSTEM = (
    "You are a careful software engineer working in the repository /srv/ledgerline. Read before you change, run the "
    "tests after every change, and say plainly what you did. Paths are relative to the repository."
)


def _tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    schema = {
        "type": "object",
        "properties": properties,
        "required": [next(iter(parameters))],
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": schema},
    }


TOOLS = [
    _tool(
        "terminal",
        "Run a shell command in the repository.",
        command="The command line.",
    ),
    _tool(
        "read_file",
        "Read a text file with line numbers.",
        path="The file.",
        offset="First line.",
        limit="Lines.",
    ),
    _tool(
        "write_file",
        "Create or replace a file.",
        path="The file.",
        content="Everything it shall hold.",
    ),
    _tool(
        "patch",
        "Replace one piece of text in a file.",
        path="The file.",
        old="What stands there.",
        new="The new text.",
    ),
    _tool(
        "search_files",
        "Search the repository with a regular expression.",
        pattern="The expression.",
        path="Where.",
    ),
    _tool("fetch_url", "Fetch a page as text.", url="The address."),
]

MODULES = [
    "accounts",
    "journal",
    "postings",
    "balances",
    "currency",
    "periods",
    "reports",
    "imports",
    "exports",
    "audit",
    "locks",
    "tax",
]
VERBS = [
    "open",
    "close",
    "post",
    "reverse",
    "convert",
    "reconcile",
    "validate",
    "summarise",
    "export",
    "lock",
]
NOUNS = [
    "entry",
    "ledger",
    "batch",
    "period",
    "balance",
    "rate",
    "statement",
    "account",
    "line",
    "voucher",
]
EXCEPTIONS = [
    "ValueError",
    "KeyError",
    "LedgerError",
    "PeriodClosedError",
    "decimal.InvalidOperation",
    "TimeoutError",
]

ASKS = [
    "The {module} tests fail on my machine since yesterday. Find out why and fix it.",
    "Add `{function}` to ledgerline/{module}.py. It must refuse negative amounts.",
    "Refactor ledgerline/{module}.py: the function {function} is too long. Keep the public names.",
    "{function} is slow with 50,000 postings. Profile it and make it at least twice as fast.",
    "Write the missing tests for {function} in {module}, the error paths too.",
    "What does {function} do when the period is closed? Just explain, change nothing.",
    "请检查 ledgerline/{module}.py 里的 {function},我怀疑四舍五入有问题。",
    "把 {module} 模块的错误信息改得更清楚一些,并补上对应的测试。",
    "Upgrade the export format of {module} to version {number} and keep the reader for the old one.",
    "Customer ticket LED-{ticket}: {function} books the amount twice when the request is retried. Please look.",
]

FIXED = {
    0: "Before we start: never touch the migrations folder, the DBA owns it. And always run `make check` before you "
    "say something is done. First task: get an overview of the repository.",
    4: "We decide to keep amounts as integers in minor units (cents), because decimals made the reports differ by a "
    "cent between SQLite and PostgreSQL.",
    7: "从现在起,提交说明请用中文写。",
    9: "The staging database is db-staging-07.internal, port 6543, schema ledger_v3. Note it, you will need it later.",
    13: "Let's use optimistic locking with a version column for the journal. Remember the retry limit: 7 attempts.",
    17: "I changed my mind about the locking: optimistic locking gave us too many conflicts. Use advisory locks "
    "instead, key 0x4C45_4447.",
    20: "The nightly import failed. The log is in var/log/import-nightly.log, have a look.",
    23: "Now write the release notes for version 2.4.0 from what we did today.",
}


class Session:
    """Builds the message list; every random choice comes from one seeded generator."""

    def __init__(self, seed: int = 7) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a fixed story, not a secret
        self.messages: list[Message] = []
        self.calls = 0

    def user(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def says(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})

    def use(self, text: str | None, *calls: tuple[str, dict[str, Any], str | None]) -> None:
        """An assistant message with calls, and their results; a result of None was never given."""
        calls_made = []
        results = []
        for name, arguments, result in calls:
            self.calls += 1
            call_id = f"call_{self.calls:04d}"
            written = json.dumps(arguments, ensure_ascii=False)
            calls_made.append(
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": name, "arguments": written},
                }
            )
            if result is not None:
                results.append({"role": "tool", "tool_call_id": call_id, "content": result})
        self.messages += [
            {"role": "assistant", "content": text, "tool_calls": calls_made},
            *results,
        ]

    def pick(self, options: list[str]) -> str:
        return self.random.choice(options)

    def function(self) -> str:
        return f"{self.pick(VERBS)}_{self.pick(NOUNS)}"

    # What the tools answer

    def source(self, module: str, function: str, length: int = 4) -> str:
        """A file with line numbers."""
        lines = [
            f'"""{module.capitalize()} of the ledger."""',
            "",
            "from ledgerline import store, money",
            "",
        ]
        for name in [function, *(self.function() for _ in range(length))]:
            field = self.pick(NOUNS)
            limit = self.random.randrange(10, 5000)
            lines += [
                "",
                f"def {name}({field}_id: int, *, amount: int, currency: str = 'EUR') -> store.Row:",
                f"    row = store.load('{field}', {field}_id)",
                f"    if amount > {limit}:",
                f"        raise {self.pick(EXCEPTIONS)}(f'amount {{amount}} exceeds {limit} for {{{field}_id}}')",
                "    total = money.convert(row.total, row.currency, currency) + amount  # in minor units",
                f"    return store.update('{field}', {field}_id, total=total, checked_by='{module}.{name}')",
            ]
        return "\n".join(f"{number:5d}  {line}" for number, line in enumerate(lines, 1))

    def tests(self, module: str, function: str, *, failing: int) -> str:
        """What pytest prints."""
        total = self.random.randrange(18, 64)
        names = [f"test_{function}_{self.pick(NOUNS)}_{i}" for i in range(failing)]
        lines = [f"collected {total} items", ""]
        lines += [
            f"tests/test_{module}.py::test_{self.function()} PASSED" for _ in range(total - failing)
        ]
        for name in names:
            a = self.random.randrange(100, 99999)
            b = self.random.randrange(100, 99999)
            lines += [
                f"tests/test_{module}.py::{name} FAILED",
                f"E       AssertionError: assert {a} == {b}",
                f"E       {self.pick(EXCEPTIONS)}: amount {a} exceeds {b} for {self.random.randrange(10**6)}",
                f"tests/test_{module}.py:{self.random.randrange(10, 400)}: AssertionError",
            ]
        summary = f"{failing} failed, {total - failing} passed" if failing else f"{total} passed"
        lines += [
            f"========= {summary} in {self.random.randrange(2, 90) / 10}s =========",
            f"[exit code {1 if failing else 0}]",
        ]
        return "\n".join(lines)

    def matches(self, function: str) -> str:
        places = [
            f"ledgerline/{self.pick(MODULES)}.py:{self.random.randrange(1, 300)}"
            for _ in range(self.random.randrange(4, 30))
        ]
        return "\n".join(
            f"{place}:    return {function}(row.id, amount=row.amount)" for place in places
        )

    def log(self, lines: int) -> str:
        """A service log, with one line that matters in the middle of it."""
        out = []
        for i in range(lines):
            level = self.random.choices(["INFO", "DEBUG", "WARNING"], [6, 3, 1])[0]
            out.append(
                f"2026-03-{1 + i // 60:02d}T02:{i % 60:02d}:11Z {level:7s} import.worker-{self.random.randrange(8)} "
                f"batch={self.random.getrandbits(48):012x} rows={self.random.randrange(1, 900)} "
                f"ms={self.random.randrange(3, 4000)}"
            )
        out[lines // 2] = (
            "2026-03-01T02:31:07Z ERROR   import.worker-3 batch=9f3a77c01b2e row 48213: currency 'XBT' is not in "
            "ledgerline/data/iso4217.json (LedgerError E-4417)"
        )
        return "\n".join(out)

    # The story

    def episode(self, number: int) -> None:
        module = MODULES[number % len(MODULES)]
        function = self.function()
        ask = FIXED.get(number) or self.pick(ASKS).format(
            module=module,
            function=function,
            number=self.random.randrange(2, 6),
            ticket=self.random.randrange(1000, 9999),
        )
        self.user(ask)
        if number in (4, 7, 9, 13, 17):
            self.says(
                {
                    4: "Noted: integers in minor units everywhere.",
                    7: "好的,之后的提交说明都用中文。",
                }.get(number, "Noted.")
            )
            self.user(
                self.pick(ASKS).format(module=module, function=function, number=3, ticket=4711)
            )
        self.look(number, module, function)
        for attempt in range(self.random.randrange(1, 4)):
            self.change(module, function, attempt)
        self.finish(number, module, function)

    def look(self, number: int, module: str, function: str) -> None:
        search = (
            "search_files",
            {"pattern": rf"\b{function}\(", "path": "ledgerline"},
            self.matches(function),
        )
        read = (
            "read_file",
            {"path": f"ledgerline/{module}.py"},
            self.source(module, function, 6),
        )
        self.use(f"I'll find where {function} is used and read the module.", search, read)
        if number == 0:
            tree = "\n".join(f"ledgerline/{name}.py\ntests/test_{name}.py" for name in MODULES)
            self.use(
                None,
                (
                    "terminal",
                    {"command": "git ls-files"},
                    f"{tree}\nmigrations/0001_init.sql\nMakefile\n[exit code 0]",
                ),
            )
        if number == 20:
            self.use(
                "The log first.",
                (
                    "terminal",
                    {"command": "cat var/log/import-nightly.log"},
                    self.log(900),
                ),
            )
        if number % 6 == 2:
            page = json.dumps(
                {
                    "rates": [
                        {
                            "pair": f"EUR/{c}",
                            "rate": self.random.randrange(9000, 15000) / 10000,
                        }
                        for c in ("USD", "CHF", "CNY", "JPY")
                        for _ in range(9)
                    ]
                }
            )
            self.use(
                None,
                ("fetch_url", {"url": "https://rates.example/v2/daily.json"}, page),
            )

    def change(self, module: str, function: str, attempt: int) -> None:
        self.use(
            "The tests show where it breaks." if attempt == 0 else "Not yet. Again:",
            (
                "terminal",
                {"command": f"pytest -q tests/test_{module}.py"},
                self.tests(module, function, failing=self.random.randrange(1, 4)),
            ),
        )
        old = f"    total = money.convert(row.total, row.currency, currency) + amount  # attempt {attempt}"
        new = (
            "    converted = money.convert(row.total, row.currency, currency)\n"
            f"    total = money.add(converted, amount)\n    audit.note('{function}', total)"
        )
        self.use(
            f"{function} adds before it rounds; I change the order.",
            (
                "patch",
                {"path": f"ledgerline/{module}.py", "old": old, "new": new},
                f"patched ledgerline/{module}.py (1 replacement)",
            ),
        )
        if self.random.random() < 0.4:
            body = self.source(module, function, 3).replace("       ", "")
            self.use(
                None,
                (
                    "write_file",
                    {"path": f"tests/test_{module}_{function}.py", "content": body},
                    f"wrote {len(body)} characters",
                ),
            )

    def finish(self, number: int, module: str, function: str) -> None:
        if number == 11:
            self.use("Now the whole suite.", ("terminal", {"command": "pytest -x"}, None))
            self.user("Stop, that takes too long here. Only the module's tests.")
        check = (
            "terminal",
            {"command": f"make check && pytest -q tests/test_{module}.py"},
            self.tests(module, function, failing=0),
        )
        self.use("Now everything for this module.", check)
        if number % 4 == 3:
            self.says(
                f"完成了:{module} 模块的 {function} 现在先换算再相加,测试全部通过,没有改动 migrations 目录。"
            )
        else:
            self.says(
                f"Done. {function} in ledgerline/{module}.py now converts first and adds then; "
                f"`make check` and the {module} tests pass."
            )


def conversation(episodes: int = 34) -> dict[str, Any]:
    """The whole request body."""
    session = Session()
    for number in range(episodes):
        session.episode(number)
    messages = [{"role": "system", "content": SYSTEM}, *session.messages]
    return {"model": "claude-sonnet-4-5", "tools": TOOLS, "messages": messages}


def main() -> None:
    target = (
        Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("long_session.json")
    )
    text = json.dumps(conversation(), ensure_ascii=False, indent=1) + "\n"
    target.write_text(text, "utf-8")
    sys.stdout.write(
        f"{target}: {len(conversation()['messages'])} messages, {len(text):,} characters\n"
    )


if __name__ == "__main__":
    main()
