"""The entry point of the program: the streams are protected before anything else is loaded."""

from __future__ import annotations

import errno
import sys

from llpauc.runtime import protect_streams


def main() -> int:
    stdout = protect_streams()
    try:
        from llpauc import cli

        code = cli.main()
    except KeyboardInterrupt:
        print("llpauc: interrupted", file=sys.stderr)
        code = 130
    except SystemExit as error:
        code = int(error.code or 0)
    sys.stdout.flush()
    if stdout.error is not None and stdout.error.errno != errno.EPIPE:  # a reader may leave early
        print(f"llpauc: error: standard output: {stdout.error.strerror}", file=sys.stderr)
        return code or 1
    return code


if __name__ == "__main__":  # a worker process imports this file and must not run it
    sys.exit(main())
