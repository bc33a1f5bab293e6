import sys

from llpauc.cli import main

sys.exit(main())
