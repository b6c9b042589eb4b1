"""Dataclasses of options -> a command of typer: each field is an option, in its group's panel.

Typer knows single options only. Libraries that know groups (cyclopts, tyro) bring their own help,
shell completion and error messages; these lines keep typer's, which is installed already. What
an option means is said once, in the docstring of its group or command: ``name : METAVAR`` and the
help.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

import typer

WIDEST_METAVAR = 28  # characters, in a help of 80 columns
SPELLED = {"evaluation": "--eval", "file_format": "--format"}
SHORT = {"output": "-o", "k": "-k"}
SECTION = re.compile(r"\n*^(?:Attributes|Parameters|Examples)\n-+\n", re.MULTILINE)
EXAMPLE = re.compile(r"^\$ (hgpart .+)$", re.MULTILINE)
ENTRY = re.compile(r"^(\w+)(?: : (.+))?\n((?: {4}.*\n?)+)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of all groups; `panel` is the heading of the group in the help."""

    panel: ClassVar[str] = "Options"


def with_groups(function: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters are options and groups -> the same with options alone."""
    groups: dict[str, Any] = {}
    parameters: list[Parameter] = []
    entries = _entries(function)
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            parameters += _options(parameter.annotation)
        elif parameter.annotation is typer.Context:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
        else:
            parameters.append(
                _option(parameter.name, parameter.annotation, parameter.default, entries, None)
            )

    @wraps(function)
    def command(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{item.name: values.pop(item.name) for item in fields(group)})
        function(**values)

    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def help_of(command: Callable[..., None]) -> tuple[str, str]:
    """The help of a command, and the example below it, from its docstring."""
    text = inspect.getdoc(command) or ""
    (example,) = EXAMPLE.findall(text)
    return SECTION.split(text)[0], f"Example: {example}"


def _options(group: Any) -> Iterator[Parameter]:
    """The fields of a group, as parameters of a command."""
    hints = get_type_hints(group, include_extras=True)
    entries: dict[str, tuple[str, str]] = {}
    for base in reversed(group.__mro__):
        entries |= _entries(base)
    for item in fields(group):
        default = Parameter.empty if item.default is MISSING else item.default
        yield _option(item.name, hints[item.name], default, entries, group.panel)


def _entries(documented: Any) -> dict[str, tuple[str, str]]:
    """The metavar and the help of each option that a docstring describes."""
    _, *sections = SECTION.split(f"{inspect.cleandoc(documented.__doc__ or '')}\n")
    entries = ENTRY.findall("\n".join(sections))
    return {name: (metavar, " ".join(text.split())) for name, metavar, text in entries}


def _option(
    name: str,
    annotation: Any,
    default: Any,
    entries: Mapping[str, tuple[str, str]],
    panel: str | None,
) -> Parameter:
    """A parameter as typer takes it; required options stay in the first panel of the help."""
    kind, declared = annotation, typer.Option()
    if get_origin(annotation) is Annotated:
        kind, declared = get_args(annotation)
    option = copy(declared)
    if name in entries:
        option.metavar, option.help = entries[name]
        words = option.metavar.split("|")
        if len(words) > 1:
            option.autocompletion = lambda incomplete: [
                word for word in words if word.islower() and word.startswith(incomplete)
            ]
        if len(option.metavar) >= WIDEST_METAVAR:
            option.metavar = "NAME"
        option.metavar = option.metavar or None
    if not isinstance(option, type(typer.Argument())):
        spelled = SPELLED.get(name, f"--{name.replace('_', '-')}")
        short = [SHORT[name]] if name in SHORT else []
        option.param_decls = (spelled, *short)
        if default is not Parameter.empty:
            option.rich_help_panel = panel
    return Parameter(
        name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


def without_values(group: Any) -> Any:
    """Show flags without a value in the help, where typer writes ``<bool>``."""
    for command in (group, *group.commands.values()):
        for option in (*command.params, command.get_help_option(typer.Context(command))):
            if getattr(option, "is_flag", False):
                option.metavar = ""
    return group
