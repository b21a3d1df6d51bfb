"""``python -m dstreams``: see :mod:`dstreams.cli`."""

import sys

from dstreams.cli import main

if __name__ == "__main__":
    sys.exit(main())
