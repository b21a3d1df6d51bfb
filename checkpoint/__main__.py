"""``python -m checkpoint``: see :mod:`checkpoint.cli.main`."""

import sys

from checkpoint.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
