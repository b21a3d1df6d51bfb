"""A PostgreSQL server of the test's own, and a DB-API driver for it that needs libpq alone."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

_TIMEOUT_S = 180


def _programs() -> Path | None:
    """Where initdb and pg_ctl are, None when they are not installed."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    on_path = shutil.which("initdb")
    places += [Path(on_path).parent] if on_path else []
    for place in places:
        if (place / "initdb").exists() and (place / "pg_ctl").exists():
            return place
    return None


@contextmanager
def running_server() -> Iterator[str]:
    """Start a server that listens on a socket file only; yields the connection string.

    Skips where PostgreSQL, its client library, or an account that may run it, is missing.
    """
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: no initdb and pg_ctl on PATH")
    if _libpq_path() is None and not _has_psycopg():
        pytest.skip("neither psycopg nor libpq is installed")
    account = _account()
    base = Path(mkdtemp(prefix="dstreams-pg-"))
    try:
        if account is not None:
            os.chown(base, account.pw_uid, account.pw_gid)

        def run(program: str, *arguments: str) -> None:
            subprocess.run(
                [str(programs / program), *arguments],
                check=True,
                stdout=subprocess.DEVNULL,
                timeout=_TIMEOUT_S,
                cwd=base,
                user=None if account is None else account.pw_uid,
                group=None if account is None else account.pw_gid,
            )

        data = str(base / "data")
        run("initdb", "-D", data, "-A", "trust", "-U", "tests", "--no-sync")
        options = f"-c listen_addresses='' -k {base}"
        run("pg_ctl", "-D", data, "-l", str(base / "log"), "-o", options, "-w", "start")
        try:
            yield f"host={base} user=tests dbname=postgres"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _account() -> pwd.struct_passwd | None:
    """Whom to run the server as: it refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    pytest.skip("PostgreSQL does not run as root, and there is no account postgres or nobody")


def connect(dsn: str) -> Any:
    """Return a connection by psycopg if it is installed, else by libpq."""
    if _has_psycopg():
        import psycopg  # type: ignore[import-not-found] # noqa: PLC0415

        return psycopg.connect(dsn)
    return Connection(dsn)


def _has_psycopg() -> bool:
    try:
        import psycopg  # noqa: F401, PLC0415
    except ImportError:
        return False
    return True


def _libpq_path() -> str | None:
    return ctypes.util.find_library("pq")


class PostgresError(Exception):
    """What the server says."""


class Connection:
    """As much of DB-API 2 as sinks use: text in, text out, ``%s`` for a parameter."""

    autocommit = False

    def __init__(self, dsn: str) -> None:
        path = _libpq_path()
        assert path is not None
        self._pq = ctypes.CDLL(path)
        for name in ("PQconnectdb", "PQexec", "PQexecParams"):
            getattr(self._pq, name).restype = ctypes.c_void_p
        for name in ("PQerrorMessage", "PQgetvalue", "PQresultErrorMessage"):
            getattr(self._pq, name).restype = ctypes.c_char_p
        self._handle = ctypes.c_void_p(self._pq.PQconnectdb(dsn.encode()))
        self._begun = False
        if self._pq.PQstatus(self._handle) != 0:
            raise PostgresError(self._pq.PQerrorMessage(self._handle).decode())
        self.run("SET client_min_messages = error")

    def cursor(self) -> Cursor:
        return Cursor(self)

    def commit(self) -> None:
        self._end("COMMIT")

    def rollback(self) -> None:
        self._end("ROLLBACK")

    def close(self) -> None:
        self._pq.PQfinish(self._handle)

    def begin(self) -> None:
        if not self._begun:
            self.run("BEGIN")
            self._begun = True

    def _end(self, how: str) -> None:
        if self._begun:
            self._begun = False
            self.run(how)

    def run(self, statement: str, parameters: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        values = [None if value is None else str(value).encode() for value in parameters]
        array = (ctypes.c_char_p * max(1, len(values)))(*values)
        result = ctypes.c_void_p(
            self._pq.PQexecParams(
                self._handle, statement.encode(), len(values), None, array, None, None, 0
            )
        )
        try:
            if self._pq.PQresultStatus(result) not in (1, 2):  # command, tuples
                raise PostgresError(self._pq.PQresultErrorMessage(result).decode())
            columns = range(self._pq.PQnfields(result))
            return [
                tuple(self._pq.PQgetvalue(result, row, column).decode() for column in columns)
                for row in range(self._pq.PQntuples(result))
            ]
        finally:
            self._pq.PQclear(result)


class Cursor:
    """A cursor that has fetched everything."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rows: list[tuple[Any, ...]] = []

    def execute(self, statement: str, parameters: Iterable[Any] = ()) -> None:
        self._connection.begin()
        parts = statement.split("%s")
        numbered = parts[0] + "".join(f"${n}{part}" for n, part in enumerate(parts[1:], 1))
        self._rows = self._connection.run(numbered, parameters)

    def executemany(self, statement: str, rows: Iterable[Iterable[Any]]) -> None:
        for row in rows:
            self.execute(statement, row)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._rows

    def close(self) -> None:
        """Nothing is held."""
