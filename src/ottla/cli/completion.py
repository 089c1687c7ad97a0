"""ottla completion bash | zsh | fish: a script for your shell, made from the parsers themselves"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module
from typing import NamedTuple

EXAMPLES = """examples:
  ottla completion bash > ~/.local/share/bash-completion/completions/ottla
  ottla completion zsh > ~/.zfunc/_ottla              (with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc)
  ottla completion fish > ~/.config/fish/completions/ottla.fish"""

SHELLS = ("bash", "zsh", "fish")


class Word(NamedTuple):
    """A verb or an action: its options, and the actions under it."""

    name: str
    what: str
    options: list[str]
    actions: list[Word]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="which shell")


def run(args: argparse.Namespace) -> int:
    scripts = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    print(scripts[args.shell](words()), end="")
    return 0


def words() -> list[Word]:
    """Every verb, with what may follow it."""
    from ottla.cli.main import VERBS, parser_of

    return [_word(verb, what, parser_of(verb, import_module(f"ottla.cli.{verb}"))) for verb, what in VERBS.items()]


def _word(name: str, what: str, parser: argparse.ArgumentParser) -> Word:
    options, actions = [], []
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        options += [option for option in action.option_strings if option.startswith("--")]
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            actions = [_word(each, helps.get(each, ""), sub) for each, sub in action.choices.items()]
        elif not action.option_strings and action.choices:
            actions = [Word(str(choice), "", [], []) for choice in action.choices]
    return Word(name, what, options, actions)


def _follows(word: Word) -> str:
    return " ".join([*(action.name for action in word.actions), *word.options])


def _places(words: list[Word], above: str = "") -> Iterator[tuple[str, Word]]:
    """Every word after which something may be typed, by all that stands before the cursor then; the longer ones first."""
    for word in words:
        place = f"{above}{word.name} "
        yield from _places(word.actions, place)
        if word.options or word.actions:
            yield place, word


def _bash(verbs: list[Word]) -> str:
    names = " ".join(verb.name for verb in verbs)
    lines = "\n".join(f'    "{place}"*) words="{_follows(word)}" ;;' for place, word in _places(verbs))
    return f"""\
# bash completion for ottla
_ottla() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" place="${{COMP_WORDS[*]:1:COMP_CWORD-1}} " words
  case "$place" in
    " ") words="{names} --help --version" ;;
{lines}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
  [ ${{#COMPREPLY[@]}} -eq 0 ] && COMPREPLY=($(compgen -f -- "$cur"))
}}
complete -o filenames -F _ottla ottla
"""


def _zsh(verbs: list[Word]) -> str:
    described = "\n".join(f"    '{verb.name}:{_quoted(verb.what)}'" for verb in verbs)
    lines = "\n".join(f"    '{place}'*) follow=({_follows(word)}) ;;" for place, word in _places(verbs))
    return f"""\
#compdef ottla
_ottla() {{
  local -a verbs follow
  verbs=(
{described}
  )
  if (( CURRENT == 2 )); then
    _describe 'verb' verbs
    return
  fi
  local place="${{words[2,CURRENT-1]}} "
  case "$place" in
{lines}
  esac
  compadd -- $follow
  _files
}}
_ottla "$@"
"""


def _fish(verbs: list[Word]) -> str:
    lines = ["# fish completion for ottla", "complete -c ottla -f"]
    for verb in verbs:
        lines.append(f"complete -c ottla -n __fish_use_subcommand -a {verb.name} -d '{_quoted(verb.what)}'")
        lines += _fish_below(verb, f"__fish_seen_subcommand_from {verb.name}")
    return "\n".join(lines) + "\n"


def _fish_below(word: Word, inside: str) -> list[str]:
    lines = [f"complete -c ottla -n '{inside}' -l {option[2:]}" for option in word.options]
    names = " ".join(action.name for action in word.actions)
    for action in word.actions:
        first = f"{inside}; and not __fish_seen_subcommand_from {names}"
        lines.append(f"complete -c ottla -n '{first}' -a {action.name} -d '{_quoted(action.what)}'")
        lines += _fish_below(action, f"{inside}; and __fish_seen_subcommand_from {action.name}")
    return lines


def _quoted(text: str) -> str:
    """Inside of single quotes: none of them, and no colon, which zsh takes for an end."""
    return text.replace("'", "’").replace(":", " -")
