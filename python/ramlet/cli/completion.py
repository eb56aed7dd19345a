"""`ramlet completion`: TAB completion in the shell.

    eval "$(ramlet completion bash)"          in ~/.bashrc; zsh and fish are similar

The printed script asks ramlet itself on every TAB: it runs `ramlet` with the words of the line, with _RAMLET_COMPLETE
set, and gets one candidate per line, followed by a tab character and its help. No candidates means that a file name is
expected, which the shell completes. Click's own protocol is not used: it passes the line as one string that has to be
split again.

    $ _RAMLET_COMPLETE=1 ramlet tokenizer train --ty
    --type      Byte-pair encoding, one token per character of the text, or one per byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from ramlet.cli.help_page import parts_of
from ramlet.cli.parameters import Argument
from ramlet.errors import SettingsError

SCRIPTS = {
    # COMP_WORDS splits `--memory=2` into three words.
    "bash": """\
_ramlet_completion() {
    local IFS=$'\\n'
    COMPREPLY=( $(_RAMLET_COMPLETE=1 "$1" "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f 1) )
}
complete -o default -F _ramlet_completion ramlet
""",
    "zsh": """\
#compdef ramlet
_ramlet_completion() {
    local -a found shown
    local line
    for line in "${(@f)$(_RAMLET_COMPLETE=1 "${words[1]}" "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        [[ -n $line ]] && found+=("${line%%$'\\t'*}") && shown+=("${line/$'\\t'/ -- }")
    done
    if (( ${#found} )); then compadd -l -d shown -a found; else _files; fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _ramlet_completion ramlet
""",
    "fish": """\
function __ramlet_completion
    set -l words (commandline -opc) (commandline -ct)
    set -l found (env _RAMLET_COMPLETE=1 $words[1] $words[2..-1] 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete --command ramlet --no-files --arguments '(__ramlet_completion)'
""",
}


def completion(
    shell: Annotated[str, Argument(metavar="bash|zsh|fish", shown=False, help="Your shell.")],
) -> None:
    """Print a script that lets a shell complete ramlet's commands, options and choices.

    Add the line for your shell to ~/.bashrc, ~/.zshrc or ~/.config/fish/config.fish.

      eval "$(ramlet completion bash)"
      eval "$(ramlet completion zsh)"
      ramlet completion fish | source
    """
    if shell not in SCRIPTS:
        raise SettingsError(f"unknown shell {shell!r}: choose from {', '.join(SCRIPTS)}")
    print(SCRIPTS[shell], end="")


def candidates(root: Any, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Completions of the last word, each with its help."""
    *before, begun = [word for word in words if word != "="] if words and words[-1] != "=" else [*words[:-1], ""]
    command, waiting, free = root, None, 0
    for word in before:
        if waiting is not None:
            waiting = None
        elif word.startswith("-"):
            option = None if "=" in word else _option(command, word)
            waiting = option if option is not None and not option.is_flag else None
        elif word in getattr(command, "commands", {}):
            command = command.commands[word]
        else:
            free += 1
    if begun.startswith("-") and "=" in begun and waiting is None:
        name, _, begun = begun.partition("=")
        waiting = _option(command, name)
        yield from ((f"{name}={choice}", "") for choice in _choices(waiting) if choice.startswith(begun))
    elif waiting is not None:
        yield from ((choice, "") for choice in _choices(waiting) if choice.startswith(begun))
    elif begun.startswith("-"):
        yield from _options(command, begun.replace("_", "-"))
    elif hasattr(command, "commands"):
        for name, each in command.commands.items():
            if name.startswith(begun) and not each.hidden:
                yield name, parts_of(each.help)[0]
    else:
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        at = arguments[min(free, len(arguments) - 1)] if arguments else None
        yield from ((choice, "") for choice in _choices(at) if choice.startswith(begun))


def _options(command: Any, begun: str) -> Iterator[tuple[str, str]]:
    for option in command.params:
        if option.param_type_name != "option" or option.hidden:
            continue
        for name in (*option.opts, *option.secondary_opts):
            if name.startswith(begun) and (name.startswith("--") or begun == name):
                yield name, (option.help or "").partition("\n")[0]
    if "--help".startswith(begun):
        yield "--help", "Show this message and exit."


def _option(command: Any, name: str) -> Any:
    """The option with this name, in either spelling, or None."""
    plain = name.replace("_", "-")
    every = (one for one in command.params if one.param_type_name == "option")
    return next((one for one in every if plain in one.opts or plain in one.secondary_opts), None)


def _choices(parameter: Any) -> list[str]:
    """The choices in a metavar: `file|line`, but not `DIR|FILE`."""
    words = (getattr(parameter, "metavar", None) or "").strip("[]").split("|")
    return [word for word in words if re.fullmatch(r"[a-z][a-z0-9.-]*", word)] if len(words) > 1 else []
