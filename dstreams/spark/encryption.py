"""Refusals of what Spark's settings promise to encrypt and dstreams does not encrypt.

All records between driver, executors and workers travel over Spark's own connections, which obey
``spark.authenticate`` and ``spark.network.crypto.enabled``. Two things do not:

- Local files of Python workers, also those of PySpark itself, which never encrypts what Python
  spills. LMDB keeps keys in order and maps its pages into memory, so replicas cannot be encrypted
  without another format. The disk of the operating system can encrypt all of them.
- The live page, which has no TLS.
"""

from __future__ import annotations

from pyspark import SparkContext

from dstreams.common.addresses import is_loopback
from dstreams.common.settings import STATE_LOCAL_ENCRYPTED, Settings, StateSettings
from dstreams.errors import InvalidStreamError

_FILES = "spark.io.encryption.enabled"
_TLS, _TLS_OF_PAGES = "spark.ssl.enabled", "spark.ssl.ui.enabled"


def require_encrypted_files(spark: SparkContext, settings: StateSettings) -> None:
    """Require that the operating system encrypts local files if Spark is to encrypt its own.

    Raises:
        InvalidStreamError: ``spark.io.encryption.enabled`` is set, and the setting that declares
            the disks encrypted is not.
    """
    if _is_set(spark, _FILES) and not settings.state_local_encrypted:
        raise InvalidStreamError(
            f"{_FILES}: Spark does not encrypt the files of its Python workers: copies of stored "
            f"state ({settings.state_local_directory or 'below the directory of temporary files'}) "
            "and rows that exceed the memory of a worker; put TMPDIR, Spark's local directories "
            "and spark.dstreams.state.localDirectory on disks that the operating system encrypts, "
            f"and set {STATE_LOCAL_ENCRYPTED}=true"
        )


def require_encrypted_page(spark: SparkContext, settings: Settings) -> None:
    """Require that the live page is for this machine only if Spark's pages use TLS.

    Raises:
        InvalidStreamError: other hosts could reach the page, and Spark's pages use TLS.
    """
    host = settings.ui_host
    if not settings.ui_enabled or host is None or is_loopback(host):
        return
    if _is_set(spark, _TLS_OF_PAGES, _is_set(spark, _TLS)):
        raise InvalidStreamError(
            f"spark.dstreams.ui.host={host}: {_TLS} asks for TLS, which the live page does not "
            "have; remove spark.dstreams.ui.host, so that only this machine can reach the page, "
            "and put a TLS proxy in front of it"
        )


def _is_set(spark: SparkContext, key: str, default: bool = False) -> bool:
    return spark.getConf().get(key, str(default)).lower() == "true"
