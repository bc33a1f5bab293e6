"""`llpauc completion`: a script that lets a shell complete commands, options and choices."""

from __future__ import annotations

from typing import Literal

from llpauc.cli.console import print_json
from llpauc.cli.parser import argparse_tree


def completion(shell: Literal["bash", "zsh", "fish"], json: bool = False) -> None:
    """Print a completion script for the shell: commands, options and their values.

    To install it for every new shell (repeat this after an update of llpauc):

      llpauc completion bash > ~/.local/share/bash-completion/completions/llpauc
      llpauc completion zsh > ~/.llpauc.zsh, and in ~/.zshrc: source ~/.llpauc.zsh
      llpauc completion fish > ~/.config/fish/completions/llpauc.fish

    Args:
        shell: the shell
        json: print the script as a JSON object
    """
    import shtab

    from llpauc.cli import COMMANDS

    script = shtab.complete(argparse_tree(COMMANDS), shell)
    if json:
        print_json({"shell": shell, "script": script})
    else:
        print(script)
