"""``python -m dstreams``: see :mod:`dstreams.cli.main`."""

import sys

from dstreams.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
