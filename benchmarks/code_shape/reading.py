"""Count how densely the code is packed, and how its names and texts read."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.table import Row

MAX_NODES = 400_000
MAX_NODES_A_LINE = 7.5
MAX_TUPLE_ASSIGNMENTS = 1.0
MAX_POSITIONAL_CALLS = 5
MAX_NOUN_CLAUSES = 0.5
MAX_REPEATED_FILE_NAMES = 15
MAX_FUNCTION_LINES = 60
MAX_FIELDS = 20
MANY_ARGUMENTS = 6

_BANNER = re.compile(r"\s*# ?-{2,}")
_SUPERLATIVE = re.compile(r"_?(MOST|LEAST|LONGEST|SHORTEST|LARGEST|SMALLEST)_")
_NOUN_CLAUSE = re.compile(
    r"(?:^|[.;:,] |\b(?:of|from|with|for|and) )[Ww]hat "
    r"(?:is|was|it|a|the|they|one|stands|goes|came|of|has|can|may|does|comes|there|others|we)\b"
)
_DIRECTIVE = re.compile(r"#\s*(noqa|fmt|type:|pragma)")


def measure_reading(root: Path) -> Iterator[Row]:
    """Measure every file below a folder."""
    files = {path: path.read_text("utf-8") for path in sorted(root.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in files.items()}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    lines = sum(bool(line.strip()) for text in files.values() for line in text.splitlines())
    yield Row("files", f"{len(files):,}")
    yield Row("lines that are not blank", f"{lines:,}")
    yield _at_most("AST nodes", len(nodes), limit=MAX_NODES)
    yield _at_most("AST nodes a line", len(nodes) / lines, limit=MAX_NODES_A_LINE)
    yield from _measure_layout(files)
    yield from _measure_statements(nodes, lines)
    yield from _measure_definitions(nodes)
    stems = Counter(path.stem for path in files if path.stem != "__init__")
    repeated = sum(count for count in stems.values() if count > 1)
    yield _at_most("files whose name is used twice", repeated, limit=MAX_REPEATED_FILE_NAMES)
    texts = [text for path in files for text in _texts(files[path], trees[path])]
    clauses = sum(bool(_NOUN_CLAUSE.search(text)) for text in texts)
    yield _at_most(
        "docstrings and comments with a what-clause as a noun, %",
        100 * clauses / len(texts),
        limit=MAX_NOUN_CLAUSES,
    )


def _at_most(what: str, figure: float, *, limit: float) -> Row:
    shown = f"{figure:,}" if isinstance(figure, int) else f"{figure:.1f}"
    return Row(what, shown, f"≤ {limit:,}", figure <= limit)


def _measure_layout(files: dict[Path, str]) -> Iterator[Row]:
    lines = [line for text in files.values() for line in text.splitlines()]
    skipped = sum("# fmt: skip" in line or "# fmt: off" in line for line in lines)
    yield _at_most("lines exempt from the formatter", skipped, limit=0)
    banners = sum(bool(_BANNER.match(line)) for line in lines)
    yield _at_most("banners inside a file", banners, limit=0)


def _measure_statements(nodes: list[ast.AST], lines: int) -> Iterator[Row]:
    tuples = sum(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Tuple)
        and isinstance(node.targets[0], ast.Tuple)
        for node in nodes
    )
    yield _at_most(
        "tuple assignments per 1,000 lines",
        1000 * tuples / lines,
        limit=MAX_TUPLE_ASSIGNMENTS,
    )
    calls = sum(isinstance(node, ast.Call) and len(node.args) >= MANY_ARGUMENTS for node in nodes)
    yield _at_most("calls with six or more positional arguments", calls, limit=MAX_POSITIONAL_CALLS)
    superlatives = sum(
        isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Store)
        and bool(_SUPERLATIVE.match(node.id))
        for node in nodes
    )
    yield _at_most("constants not named MAX_ or MIN_", superlatives, limit=0)


def _measure_definitions(nodes: list[ast.AST]) -> Iterator[Row]:
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = sum(
        (node.end_lineno or node.lineno) - node.lineno >= MAX_FUNCTION_LINES for node in functions
    )
    yield _at_most(f"functions over {MAX_FUNCTION_LINES} lines", long, limit=0)
    wide = sum(
        isinstance(node, ast.ClassDef)
        and sum(isinstance(item, ast.AnnAssign) for item in node.body) > MAX_FIELDS
        for node in nodes
    )
    yield _at_most(f"classes with more than {MAX_FIELDS} fields", wide, limit=0)


def _texts(source: str, tree: ast.AST) -> Iterator[str]:
    """Yield docstrings and comments, white space folded."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            value = node.value.value
            if isinstance(value, str):
                yield " ".join(value.split())
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not _DIRECTIVE.match(token.string):
            yield token.string[1:].strip()
