"""A small part of Go's template language: text, values, pipelines, variables, if. Read once, run for each value.

There are no loops and no definitions, so a template takes time that its own length bounds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from penstock.modifiers.transform.template_functions import FUNCTIONS
from penstock.modifiers.transform.template_values import is_true, shown
from penstock.options import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_ACTION = re.compile(
    r"\{\{(-(?=\s))?(/\*.*?\*/|(?:\"(?:[^\"\\]|\\.)*\"|`[^`]*`|[^}\"`]|\}(?!\}))*?)((?<=\s)-)?\}\}",
    re.S,
)
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string>"(?:[^"\\\n]|\\.)*"|`[^`]*`)
    | (?P<number>-?\d+(?:\.\d+)?)
    | (?P<method>\.[A-Za-z_]\w*)
    | (?P<dot>\.(?!\w))
    | (?P<variable>\$\w*)
    | (?P<word>[A-Za-z_]\w*)
    | (?P<mark>:=|=|[()|,])
    )""",
    re.X,
)
_OF_THE_ROW = (".GetValue", ".GetDynamicValue")
_NOT_OFFERED = ("range", "define", "template", "block", "break", "continue")


class BadTemplate(Exception):
    """The template cannot be read; the text says why, and what to do is in `do`."""

    def __init__(self, what: str, do: str = "see the reference of transformers") -> None:
        super().__init__(what)
        self.do = do


@dataclass
class Row:
    """What a template sees: the value, other columns by name, and its own variables."""

    value: Any
    others: Mapping[str, Any]
    variables: dict[str, Any] = field(default_factory=dict)
    dot: Any = None  # what `with` is about


@dataclass(frozen=True)
class Template:
    """A template that was read. `columns` are those that it asks for, `functions` what it calls."""

    run: Callable[[Row], str]
    columns: tuple[str, ...]
    functions: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str) -> Template:
        """Read a template.

        Raises:
            BadTemplate: it is none, or asks for what there is not.
        """
        try:
            return _Reader(text).template()
        except RecursionError:
            raise BadTemplate("it is nested too deeply", "nest less") from None


class _Reader:
    """Reads one template, from its beginning to its end."""

    def __init__(self, text: str) -> None:
        self._parts = _split(text)
        self._at = 0
        self._columns: list[str] = []
        self._variables: set[str] = set()
        self._functions: set[str] = set()
        self._depth = 0  # of `with`

    def template(self) -> Template:
        steps, ended_by = self._block()
        if ended_by is not None:
            raise BadTemplate(f"{ended_by} without an if", "take it out")
        columns = tuple(dict.fromkeys(self._columns))
        return Template(_joined(steps), columns, frozenset(self._functions))

    def _block(self) -> tuple[list[Callable[[Row], str]], str | None]:
        """Steps up to `else` or `end`, and which of them it was."""
        steps: list[Callable[[Row], str]] = []
        while self._at < len(self._parts):
            is_action, text = self._parts[self._at]
            self._at += 1
            if not is_action:
                steps.append(_constant(text))
                continue
            tokens = _tokens(text)
            if not tokens:
                continue
            word = tokens[0][1] if tokens[0][0] == "word" else ""
            if word in _NOT_OFFERED:
                raise BadTemplate(f"{word} is not offered", "write it with if, or with python:")
            if word in ("else", "end"):
                return steps, text.strip()
            if word in ("if", "with"):
                steps.append(self._if(tokens[1:], is_with=word == "with"))
            else:
                steps.append(self._output(tokens))
        return steps, None

    def _if(self, tokens: list[tuple[str, str]], *, is_with: bool = False) -> Callable[[Row], str]:
        name, tokens = _assigned(tokens)
        test = self._pipeline(_Tokens(tokens))
        if name is not None:
            self._variables.add(name)
        self._depth += is_with
        yes, ended_by = self._block()
        self._depth -= is_with
        no: list[Callable[[Row], str]] = []
        if ended_by is not None and ended_by.startswith("else"):
            rest = _tokens(ended_by)[1:]
            if rest[:1] == [("word", "if")]:
                no = [self._if(rest[1:])]
            elif rest:
                raise BadTemplate("else is followed by something", "write else, or else if")
            else:
                no, ended_by = self._block()
                if ended_by != "end":
                    raise BadTemplate("an if has no end", "write {{ end }}")
        elif ended_by != "end":
            raise BadTemplate("an if has no end", "write {{ end }}")
        return _branch(test, name, is_with, _joined(yes), _joined(no))

    def _output(self, given: list[tuple[str, str]]) -> Callable[[Row], str]:
        name, rest = _assigned(given)
        if name is not None:
            compute = self._pipeline(_Tokens(rest))
            self._variables.add(name)
            return _assignment(name, compute)
        compute = self._pipeline(_Tokens(given))
        return lambda row: shown(compute(row))

    def _pipeline(self, tokens: _Tokens, *, inner: bool = False) -> Callable[[Row], Any]:
        compute = self._command(tokens, None)
        while tokens.peek() == ("mark", "|"):
            tokens.take()
            compute = self._command(tokens, compute)
        if not inner and tokens.peek() is not None:
            raise BadTemplate("an action has something left over", "write function argument …")
        return compute

    def _command(self, tokens: _Tokens, piped: Callable[[Row], Any] | None) -> Callable[[Row], Any]:
        first = tokens.peek()
        if first is None:
            raise BadTemplate("an action is empty or ends too early", "write a value in it")
        if first[0] == "word" and first[1] not in ("true", "false", "nil"):
            tokens.take()
            return self._call(first[1], self._arguments(tokens, piped))
        operand = self._operand(tokens)
        if piped is not None:
            raise BadTemplate("a value is piped into what is no function", "name a function")
        return operand

    def _arguments(
        self, tokens: _Tokens, piped: Callable[[Row], Any] | None
    ) -> list[Callable[[Row], Any]]:
        arguments = []
        while tokens.peek() not in (None, ("mark", "|"), ("mark", ")")):
            arguments.append(self._operand(tokens))
        return arguments if piped is None else [*arguments, piped]

    def _call(self, name: str, arguments: Sequence[Callable[[Row], Any]]) -> Callable[[Row], Any]:
        self._functions.add(name)
        if name in ("and", "or"):
            return _short_circuit(name, arguments)
        function = FUNCTIONS.get(name)
        if function is None:
            known = [*FUNCTIONS, "and", "or"]
            raise BadTemplate(f"there is no function {name}", nearest(name, known))

        def run(row: Row) -> Any:
            values = [argument(row) for argument in arguments]
            try:
                return function(*values)
            except TypeError:
                raise ValueError(f"{name} does not take these arguments") from None

        return run

    def _operand(self, tokens: _Tokens) -> Callable[[Row], Any]:
        kind, text = tokens.take()
        if (kind, text) == ("mark", "("):
            inner = self._pipeline(tokens, inner=True)
            if tokens.take() != ("mark", ")"):
                raise BadTemplate("a parenthesis is not closed", "close it")
            return _fields(inner, tokens)
        if kind in ("dot", "method", "variable"):
            return self._value(kind, text, tokens)
        if kind == "word" and text not in ("true", "false", "nil"):
            return self._call(text, [])
        value = _literal(kind, text)
        return lambda _: value

    def _value(self, kind: str, text: str, tokens: _Tokens) -> Callable[[Row], Any]:
        if kind == "dot":
            if not self._depth:
                raise BadTemplate("there is no value . outside of with", "write .GetValue")
            return lambda row: row.dot
        if kind == "method" and self._depth:
            if text in _OF_THE_ROW:
                raise BadTemplate(f"inside of with there is no {text}", f"write ${text}")
            return _fields(_field(lambda row: row.dot, text), tokens)
        if kind == "method":
            return self._method(text, tokens)
        if (kind, text) == ("variable", "$"):
            kind, text = tokens.take()
            if kind != "method":
                raise BadTemplate("$ stands alone", "write $.GetValue")
            return self._method(text, tokens)
        if text not in self._variables:
            raise BadTemplate(f"{text} has no value", f"write {{{{ {text} := … }}}} before")
        return _fields(lambda row: row.variables.get(text), tokens)

    def _method(self, name: str, tokens: _Tokens) -> Callable[[Row], Any]:
        if name == ".GetValue":
            return lambda row: row.value
        if name != ".GetDynamicValue":
            do = 'write .GetValue, or .GetDynamicValue "column"'
            raise BadTemplate(f"there is no {name}", do)
        after = tokens.peek()
        if after is None or after[0] != "string":
            raise BadTemplate(
                ".GetDynamicValue lacks the name of a column", 'write .GetDynamicValue "column"'
            )
        column = str(_literal(*tokens.take()))
        self._columns.append(column)
        return lambda row: row.others[column]


class _Tokens:
    """The tokens of one action, taken one by one."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0

    def peek(self) -> tuple[str, str] | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def take(self) -> tuple[str, str]:
        found = self.peek()
        if found is None:
            raise BadTemplate("an action ends too early", "write a value in it")
        self._at += 1
        return found


def _split(text: str) -> list[tuple[bool, str]]:
    """Text and actions in turn; a dash trims the blanks on its side."""
    parts: list[tuple[bool, str]] = []
    begin, trims = 0, False
    for match in _ACTION.finditer(text):
        before = text[begin : match.start()]
        _refuse_braces(before)
        before = before.lstrip() if trims else before
        parts.append((False, before.rstrip() if match[1] else before))
        if not match[2].strip().startswith("/*"):
            parts.append((True, match[2]))
        begin, trims = match.end(), bool(match[3])
    rest = text[begin:]
    _refuse_braces(rest)
    parts.append((False, rest.lstrip() if trims else rest))
    return parts


def _refuse_braces(text: str) -> None:
    if "{{" in text:
        raise BadTemplate("an action is not closed", "write }} behind it")


def _tokens(action: str) -> list[tuple[str, str]]:
    found, at = [], 0
    text = action.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise BadTemplate("an action cannot be read", "write function argument …")
        assert match.lastgroup is not None
        found.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return found


def _literal(kind: str, text: str) -> Any:
    if kind == "number":
        return Decimal(text) if "." in text else int(text)
    if kind == "word":
        return {"true": True, "false": False, "nil": None}[text]
    if kind == "string" and text.startswith("`"):
        return text[1:-1]
    if kind == "string":
        escapes = {"n": "\n", "t": "\t", "\\": "\\", '"': '"', "r": "\r"}
        return re.sub(r"\\(.)", lambda match: escapes.get(match[1], match[0]), text[1:-1])
    raise BadTemplate("a value is wanted", "write .GetValue, a text or a number")


def _assigned(given: list[tuple[str, str]]) -> tuple[str | None, list[tuple[str, str]]]:
    """The variable that is given a value, and what says which."""
    is_variable = len(given) > 2 and given[0][0] == "variable" and given[0][1] != "$"
    if is_variable and given[1][1] in (":=", "="):
        return given[0][1], given[2:]
    return None, given


def _branch(
    test: Callable[[Row], Any],
    name: str | None,
    is_with: bool,
    yes: Callable[[Row], str],
    no: Callable[[Row], str],
) -> Callable[[Row], str]:
    """if and with: the latter has what was found as its dot."""

    def run(row: Row) -> str:
        found = test(row)
        if name is not None:
            row.variables[name] = found
        if not is_true(found):
            return no(row)
        before = row.dot
        row.dot = found if is_with else before
        try:
            return yes(row)
        finally:
            row.dot = before

    return run


def _fields(base: Callable[[Row], Any], tokens: _Tokens) -> Callable[[Row], Any]:
    """What stands under names behind a value, ._0 of what `split` gives."""
    while (after := tokens.peek()) is not None and after[0] == "method":
        if after[1] in _OF_THE_ROW:
            break
        tokens.take()
        base = _field(base, after[1])
    return base


def _field(base: Callable[[Row], Any], name: str) -> Callable[[Row], Any]:
    def run(row: Row) -> Any:
        found = base(row)
        if not isinstance(found, dict):
            raise ValueError(f"there is no {name} in what is not parted by split")  # noqa: TRY004
        return found.get(name[1:], "")

    return run


def _constant(text: str) -> Callable[[Row], str]:
    return lambda _: text


def _joined(steps: Sequence[Callable[[Row], str]]) -> Callable[[Row], str]:
    return lambda row: "".join([step(row) for step in steps])


def _assignment(name: str, compute: Callable[[Row], Any]) -> Callable[[Row], str]:
    def run(row: Row) -> str:
        row.variables[name] = compute(row)
        return ""

    return run


def _short_circuit(name: str, arguments: Sequence[Callable[[Row], Any]]) -> Callable[[Row], Any]:
    if not arguments:
        raise BadTemplate(f"{name} has no arguments", "give it two")

    def run(row: Row) -> Any:
        value = None
        for argument in arguments:
            value = argument(row)
            if is_true(value) == (name == "or"):
                return value
        return value

    return run
