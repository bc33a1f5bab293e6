import sys

from llpauc.cli import main

if __name__ == "__main__":  # a worker process imports this file and must not run it
    sys.exit(main())
