"""A command's context -> its command line, for its processes and for what to type next."""

from __future__ import annotations

from shlex import quote
from typing import cast

import typer


def written_out(context: typer.Context) -> list[str]:
    """The arguments and options of a command, and those of hgpart, as they are typed."""
    levels: list[typer.Context] = [context]
    if context.parent is not None:
        levels.append(cast(typer.Context, context.parent))
    return [word for level in levels for name in level.params for word in _words(level, name)]


def typed(context: typer.Context, *names: str) -> str:
    """The given ones of some options, for another command that takes them; a blank first."""
    given = [name for name in names if _is_given(context, name)]
    return "".join(f" {quote(word)}" for name in given for word in _words(context, name))


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _words(context: typer.Context, name: str) -> list[str]:
    parameter = next(item for item in context.command.params if item.name == name)
    value = context.params[name]
    if value is None or value is False:
        return []
    if parameter.param_type_name == "argument":
        return [str(value)]
    if value is True:
        return [parameter.opts[0]]
    if parameter.multiple:
        return [word for item in value for word in (parameter.opts[0], str(item))]
    if isinstance(value, tuple):
        return [parameter.opts[0], ",".join(map(str, value))]
    return [parameter.opts[0], str(value)]
