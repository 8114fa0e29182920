"""Count how densely the code is packed, and how its names, docstrings and comments read."""

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
MANY_PARAMETERS = 9

_BANNER_PATTERN = re.compile(r"\s*# ?-{2,}")
_SUPERLATIVE_PATTERN = re.compile(r"_?(MOST|LEAST|LONGEST|SHORTEST|LARGEST|SMALLEST)_")
_NOUN_CLAUSES = "docstrings and comments with a what-clause as a noun, %"
_UNPLAIN_PATTERNS = {
    "'where' for if or when": re.compile(
        r"(?:[,;:]|None|False|True|empty|itself|\w+) where "
        r"(?:it|that|there|nothing|none|no|one|they|somebody|its|a|the|this|what|all|he)\b"
    ),
    "stand for be": re.compile(r"\b(?:stands?|stood)\b"),
    "so many, so much, so long": re.compile(r"\b[Ss]o (?:many|much|long|few)\b"),
    "told, tells": re.compile(r"\b(?:told|tells?|telling)\b"),
    "ours": re.compile(r"\b(?:of ours|ours)\b"),
    "is no X": re.compile(r"\b(?:is|are|was|be) no (?!longer|more)\w+"),
    "anybody, nobody, whoever": re.compile(
        r"\b(?:[Aa]nybody|[Nn]obody|[Ss]omebody|[Ee]verybody|[Ww]hoever)\b"
    ),
    "as it came, as it is": re.compile(r"\bas (?:it|they) (?:came|comes|is|are|was|were)\b"),
    "goes on": re.compile(r"\b(?:goes|go|went) on\b"),
    "behind for after": re.compile(r"\bbehind\b"),
}
"""Expressions that plain English can do without. Some of their uses are right, so they have no goal."""
_NOUN_CLAUSE_PATTERN = re.compile(
    r"(?:^|[.;:,] |\b(?:of|from|with|for|and) )[Ww]hat "
    r"(?:is|was|it|a|the|they|one|stands|goes|came|of|has|can|may|does|comes|there|others|we)\b"
)
_DIRECTIVE_PATTERN = re.compile(r"#\s*(noqa|fmt|type:|pragma)")


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
    texts = [text for path in files for text in _list_texts(files[path], trees[path])]
    yield from _measure_texts(texts)


def _measure_texts(texts: list[str]) -> Iterator[Row]:
    yield Row("docstrings and comments", f"{len(texts):,}")
    clause_count = sum(bool(_NOUN_CLAUSE_PATTERN.search(text)) for text in texts)
    yield _at_most(_NOUN_CLAUSES, 100 * clause_count / len(texts), limit=MAX_NOUN_CLAUSES)
    for name, pattern in _UNPLAIN_PATTERNS.items():
        count = sum(bool(pattern.search(text)) for text in texts)
        yield Row(f"docstrings and comments with {name}", f"{count:,}")


def _at_most(what: str, figure: float, *, limit: float) -> Row:
    shown = f"{figure:,}" if isinstance(figure, int) else f"{figure:.1f}"
    return Row(what, shown, f"≤ {limit:,}", figure <= limit)


def _measure_layout(files: dict[Path, str]) -> Iterator[Row]:
    lines = [line for text in files.values() for line in text.splitlines()]
    skipped = sum("# fmt: skip" in line or "# fmt: off" in line for line in lines)
    yield _at_most("lines exempt from the formatter", skipped, limit=0)
    banners = sum(bool(_BANNER_PATTERN.match(line)) for line in lines)
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
        and bool(_SUPERLATIVE_PATTERN.match(node.id))
        for node in nodes
    )
    yield _at_most("constants not named MAX_ or MIN_", superlatives, limit=0)


def _measure_definitions(nodes: list[ast.AST]) -> Iterator[Row]:
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = sum(
        (node.end_lineno or node.lineno) - node.lineno >= MAX_FUNCTION_LINES for node in functions
    )
    yield _at_most(f"functions over {MAX_FUNCTION_LINES} lines", long, limit=0)
    many_parameters = sum(_count_parameters(node) >= MANY_PARAMETERS for node in functions)
    yield Row("functions with nine or more parameters", f"{many_parameters:,}")
    wide = sum(
        isinstance(node, ast.ClassDef)
        and sum(isinstance(item, ast.AnnAssign) for item in node.body) > MAX_FIELDS
        for node in nodes
    )
    yield _at_most(f"classes with more than {MAX_FIELDS} fields", wide, limit=0)


def _count_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = function.args
    return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)


def _list_texts(source: str, tree: ast.AST) -> Iterator[str]:
    """Yield docstrings and comments, with white space folded."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            value = node.value.value
            if isinstance(value, str):
                yield " ".join(value.split())
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not _DIRECTIVE_PATTERN.match(token.string):
            yield token.string[1:].strip()
