"""The daemon of dstreams, which imports the programs too: it takes each worker a second."""

import tests.cluster.programs  # noqa: F401
from dstreams.spark.worker_daemon import main

if __name__ == "__main__":
    main()
