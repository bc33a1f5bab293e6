"""The command line: `llpauc COMMAND ...`."""

from llpauc.cli.commands import COMMANDS, main

__all__ = ["COMMANDS", "main"]
