"""The texts of a file: docstrings, comments and strings of Python, prose of Markdown, texts in YAML and in templates. Pure."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import yaml

FIELDS = {"description", "summary", "message", "title"}
"""Keys of YAML whose values are written for people."""
METRICS = {"Counter", "Gauge", "Histogram", "Summary", "Info"}
SENTENCE_END = re.compile(r"(?<=[.!?…])[)\"'”]*\s+(?=[^\sa-z])")
DOCSTRING_PARTS = re.compile(r"\n\s*\n|\n(?=\s+[\w, ]+:)")
"""Between the paragraphs of a docstring, and before each argument or exception."""
LIST_ITEM = re.compile(r"\s*([-*+]|\d+[.)])\s+")
TEMPLATE_ACTION = re.compile(r"\{\{.*?\}\}", re.DOTALL)
CODE_SPAN = re.compile(r"(`+).*?\1", re.DOTALL)
EMPHASIS = re.compile(r"(?<!\w)\*{1,3}(?=\w)|(?<=[\w.,:;!?)])\*{1,3}(?!\w)")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|\[([^\]]*)\]\[[^\]]*\]")


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of prose and the line where it begins. Code in it is replaced by a single `X`."""

    line: int
    text: str
    limited: bool = False
    """Whether its sentences have a limit of length."""


def texts(path: str, source: str) -> list[Text]:
    """Return the texts of a file, by its suffix. Files of other kinds have none."""
    suffix = path.rsplit(".", 1)[-1]
    if suffix == "py":
        return list(_python(source))
    if suffix == "md":
        return list(_markdown(source))
    if suffix == "tpl" or "/templates/" in path:
        return list(_template(source))
    if suffix in {"yaml", "yml"}:
        return list(_yaml(source))
    return []


def sentences(text: Text) -> Iterator[str]:
    """Yield the sentences of a text."""
    for part in SENTENCE_END.split(" ".join(text.text.split())):
        if part:
            yield part


def count(sentence: str) -> int:
    """Return the number of words in a sentence. Dashes and signs are none; code is one."""
    return sum(any(letter.isalnum() for letter in word) for word in sentence.split())


def _python(source: str) -> Iterator[Text]:
    tree = ast.parse(source)
    helps = {id(node) for node in ast.walk(tree) if isinstance(node, ast.Call) for node in _metric_help(node)}
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            if id(node) in helps or len(node.value.split()) > 1:
                yield Text(node.lineno, _without_code(node.value), limited=id(node) in helps)
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "x" for part in node.values)
            yield Text(node.lineno, _without_code("".join(map(str, parts))), limited=id(node) in helps)
    yield from _joined(
        (token.start[0], token.string.lstrip("#").strip())
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    )


def docstrings(tree: ast.AST) -> Iterator[Text]:
    """Yield the paragraphs and entries of each docstring."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    for part in DOCSTRING_PARTS.split(text):
                        yield Text(statement.lineno, _without_code(part), limited=True)
                case _:
                    pass


def _metric_help(call: ast.Call) -> Iterator[ast.expr]:
    """Yield the help text of a metric: the second argument of prometheus_client's classes."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if (name in METRICS or name.endswith("MetricFamily")) and len(call.args) > 1:
        yield call.args[1]
    if name in METRICS or name.endswith("MetricFamily"):
        yield from (keyword.value for keyword in call.keywords if keyword.arg == "documentation")


def _joined(lines: Iterable[tuple[int, str]], *, limited: bool = False) -> Iterator[Text]:
    """Yield one text for lines that follow each other."""
    first, last, parts = 0, -1, list[str]()
    for line, text in lines:
        if line != last + 1 and parts:
            yield Text(first, _without_code("\n".join(parts)), limited)
            parts = []
        if not parts:
            first = line
        parts.append(text)
        last = line
    if parts:
        yield Text(first, _without_code("\n".join(parts)), limited)


def _markdown(source: str) -> Iterator[Text]:
    """Yield paragraphs, list items and headings, whose sentences are limited, and rows of tables, whose are not."""
    block: list[tuple[int, str]] = []
    fence = ""
    for number, line in enumerate(re.sub(r"<!--.*?-->", _blank, source, flags=re.DOTALL).splitlines(), 1):
        bare = line.strip().removeprefix("> ").strip()
        mark = re.match(r"(```+|~~~+)", bare)
        if mark and (not fence or bare == fence):
            fence = "" if fence else mark[0]
            yield from _joined(block, limited=True)
            block = []
        elif fence:
            continue
        elif not bare or bare.startswith(("#", "|", "<")) or LIST_ITEM.match(line):
            yield from _joined(block, limited=True)
            block = []
            if bare.startswith("|"):
                yield Text(number, _without_code(bare))
            elif bare and not bare.startswith("<"):
                block = [(number, LIST_ITEM.sub("", bare).lstrip("# "))]
                if bare.startswith("#"):
                    yield from _joined(block, limited=True)
                    block = []
        else:
            block.append((number, bare))
    yield from _joined(block, limited=True)


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def _yaml(source: str) -> Iterator[Text]:
    """Yield values of the keys that people read, and comments. Those of helm-docs (`# --`) are public."""
    try:
        documents = list(yaml.compose_all(source, Loader=yaml.SafeLoader))
    except yaml.YAMLError:
        documents = []  # a template after all: its comments are left
    for document in documents:
        yield from _fields(document)
    comments = [(number, line.strip()) for number, line in enumerate(source.splitlines(), 1)]
    own = [(number, line.lstrip("#").strip()) for number, line in comments if line.startswith("#")]
    for text in _joined(own):
        public = text.text.startswith("-- ")
        yield Text(text.line, text.text.removeprefix("-- "), limited=public)


def _fields(node: yaml.Node | None) -> Iterator[Text]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value in FIELDS and isinstance(value, yaml.ScalarNode):
                plain = TEMPLATE_ACTION.sub("x", value.value)
                for paragraph in re.split(r"\n\s*\n|\n(?=\s*[-*] )", plain):
                    yield Text(value.start_mark.line + 1, _without_code(paragraph), limited=True)
            else:
                yield from _fields(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _fields(value)


def _template(source: str) -> Iterator[Text]:
    """Yield each line of a template without its actions. Comments between actions are texts, too."""
    comments = re.compile(r"\{\{-?\s*/\*(.*?)\*/\s*-?\}\}", re.DOTALL)
    plain = TEMPLATE_ACTION.sub(lambda match: _kept(comments.sub(r"\1", match[0])), source)
    for number, line in enumerate(plain.splitlines(), 1):
        if line.strip():
            yield Text(number, _without_code(line.strip().lstrip("#").strip()))


def _kept(action: str) -> str:
    """Return a comment's text; of other actions only their line ends are left."""
    return "x" + "\n" * action.count("\n") if action.startswith("{{") else action


def _without_code(text: str) -> str:
    """Return a text with its code spans replaced by `X`, links by what is read of them, and without emphasis."""
    return EMPHASIS.sub("", LINK.sub(lambda match: match[1] or match[2] or "X", CODE_SPAN.sub("X", text)))
