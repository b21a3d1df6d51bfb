"""``python -m checkpoint``: see :mod:`checkpoint.cli`."""

import sys

from checkpoint.cli import main

if __name__ == "__main__":
    sys.exit(main())
