"""Where the program begins: the command line is loaded here, and Ctrl-C heard meanwhile."""

from __future__ import annotations

import sys


def main() -> int:
    try:
        from llpauc import cli
    except KeyboardInterrupt:
        print("llpauc: interrupted", file=sys.stderr)
        return 130
    return cli.main()


if __name__ == "__main__":  # a worker process imports this file and must not run it
    sys.exit(main())
