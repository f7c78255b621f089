"""Completion of a command line: commands, options, topics, groups, contexts.

The script of each shell calls ``goq`` with ``_GOQ_COMPLETE`` set and the words up to the cursor,
the last one unfinished. Candidates are printed a line each, with a tab and a help text. Without
any, the shell completes files. A node that does not answer within a second gives none.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from goq.errors import GoqError, UsageError
from goq_cli.session import SESSION, take_global_options

if TYPE_CHECKING:
    from goq.client import Client

Candidate = tuple[str, str]
_GLOBAL_OPTIONS: Final = {
    "--server": "URL of a node",
    "--context": "the servers of this context",
    "--token-file": "the token in a file",
    "--ca-file": "authorities of https servers",
    "--json": "print JSON",
    "--help": "show the help",
}
_CHOICES: Final = re.compile(r"[a-z0-9]+(\|[A-Za-z0-9]+)+")
_TOPIC: Final = re.compile(r"\[?(ID\|)?TOPIC\b")
_GROUP_METAVARS: Final = ("G", "GROUP")
_TOPICS_LOOKED_AT_MAX: Final = 50

SCRIPTS: Final = {
    "bash": r"""_goq() {
    local IFS=$'\n'
    COMPREPLY=($(_GOQ_COMPLETE=1 goq "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f1))
}
complete -o default -F _goq goq
""",
    "zsh": r"""#compdef goq
_goq() {
    local -a found
    found=("${(@f)$(_GOQ_COMPLETE=1 goq "${(@)words[2,CURRENT]}" 2>/dev/null \
        | sed -e 's/:/\\:/g' -e $'s/\t$//' -e $'s/\t/:/')}")
    if [[ -n "${found[*]}" ]]; then _describe goq found; else _files; fi
}
compdef _goq goq
""",
    "fish": r"""function __goq_complete
    set -l found (_GOQ_COMPLETE=1 goq (commandline -opc)[2..] (commandline -ct) 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c goq -f -a '(__goq_complete)'
""",
}


def print_candidates(words: Sequence[str]) -> str:
    """Return the lines for a shell; nothing where nothing is known."""
    unfinished = words[-1] if words else ""
    return "".join(
        f"{value}\t{text}\n"
        for value, text in candidates(words[:-1], unfinished)
        if value.startswith(unfinished)
    )


def candidates(words: Sequence[str], unfinished: str) -> Iterable[Candidate]:
    """Return what may stand after ``words``; the caller leaves out what does not fit."""
    try:
        rest = take_global_options(list(words))
    except UsageError:  # the last word is an option that needs a value
        return [(name, "") for name in _contexts()] if words[-1] == "--context" else []
    found = _Line(rest)
    if found.option is not None:
        return _values(found.option, found)
    if unfinished.startswith("-"):
        return [*_options(found.command), *_GLOBAL_OPTIONS.items()]
    if found.is_group:
        return found.commands()
    positional = found.argument()
    return [] if positional is None else _values(positional, found)


class _Line:
    """The command of a line, the option that waits for its value, and the arguments so far."""

    def __init__(self, words: Sequence[str]) -> None:
        from typer.main import get_command

        from goq_cli.main import COMMANDS, build_app

        named = next((word for word in words if not word.startswith("-")), None)
        self._is_root = named not in COMMANDS
        app = build_app([named] if named in COMMANDS else [])
        command: Any = get_command(app)
        self.command: Any = command
        self.option: Any = None
        self.given: dict[str, str] = {}
        self._arguments: list[str] = []
        self._path: list[str] = []
        options = self._takers()
        for word in words:
            if self.option is not None:
                self.given[str(self.option.name)] = word
                self.option = None
            elif word in options:
                self.option = options[word]
            elif word.startswith("-"):
                continue
            elif self.is_group:
                self._path.append(word)
                self.command = dict(self.command.commands).get(word, self.command)
                options = self._takers()
            else:
                self._arguments.append(word)

    @property
    def is_group(self) -> bool:
        """Whether a command is still to be named."""
        return hasattr(self.command, "commands")

    @property
    def names_topic(self) -> bool:
        """Whether ``NAME`` is that of a topic that exists."""
        return self._path[:1] == ["topic"] and self._path[1:] != ["create"]

    def commands(self) -> Iterator[Candidate]:
        """Yield the commands that may be named."""
        from goq_cli.main import COMMANDS

        if self._is_root:
            yield from COMMANDS.items()
            return
        for name, command in self.command.commands.items():
            yield name, command.get_short_help_str(80)

    def argument(self) -> Any:
        """Return the argument that is next, None if there is none."""
        known = [p for p in self.command.params if p.param_type_name == "argument"]
        for place, argument in enumerate(known):
            if place == len(self._arguments) or argument.nargs == -1:
                return argument
        return None

    def topics(self) -> list[str]:
        """Return the topics that the line names."""
        known = [p for p in self.command.params if p.param_type_name == "argument"]
        named = [
            word
            for word, argument in zip(self._arguments, known, strict=False)
            if _TOPIC.match(_metavar(argument))
        ]
        return [self.given["topic"]] if "topic" in self.given else named

    def _takers(self) -> dict[str, Any]:
        """Return the options of the command that take a value, by name."""
        return {
            name: param
            for param in self.command.params
            if param.param_type_name == "option" and not (param.is_flag or param.count)
            for name in param.opts
        }


def _values(param: Any, line: _Line) -> list[Candidate]:
    metavar = _metavar(param)
    if _TOPIC.match(metavar) or (metavar == "NAME" and line.names_topic):
        return [(name, "") for name in _asked(lambda client: _topics(client))]
    if metavar in _GROUP_METAVARS:
        return [(name, "") for name in _asked(lambda client: _groups(client, line.topics()))]
    if _CHOICES.fullmatch(metavar):
        return [(name, "") for name in metavar.split("|") if name.islower()]
    return []


def _options(command: Any) -> Iterator[Candidate]:
    for param in command.params:
        if param.param_type_name == "option" and not param.hidden:
            name = max(param.opts, key=len)
            yield name, (param.help or "").partition(".")[0]


def _metavar(param: Any) -> str:
    return str(param.metavar or "")


def _asked(ask: Any) -> list[str]:
    with contextlib.suppress(GoqError), SESSION.client() as client:
        return sorted(set(ask(client)))
    return []


def _topics(client: Client) -> list[str]:
    return [topic.name for topic in client.list_topics()]


def _groups(client: Client, topics: Sequence[str]) -> list[str]:
    looked_at = topics or _topics(client)[:_TOPICS_LOOKED_AT_MAX]
    return [group.group for topic in looked_at for group in client.list_groups(topic)]


def _contexts() -> list[str]:
    from goq_cli.contexts import load_contexts

    return sorted(load_contexts().contexts)
