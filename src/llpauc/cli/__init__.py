"""The command line: `llpauc COMMAND ...`."""

from llpauc.cli.main import COMMANDS, main

__all__ = ["COMMANDS", "main"]
