"""Contracts for implementers of a storage or of a state backend, as plain assertions::

def test_my_files(tmp_path):
    numbers = itertools.count()
    check_files(lambda: MyFiles(tmp_path / str(next(numbers))))

def test_my_backend():
    check_backend(MyBackend)
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from checkpoint.errors import AlreadyExistsError, CheckpointError
from checkpoint.log.batch_records import EMPTY, PartitionCommit, StoreId, VersionId
from checkpoint.state_store.backend import Changes, RawVersion, StateBackend, pairs_checksum
from checkpoint.storage.files import Files

RACING_CREATORS = 8

_BAD_NAMES = (
    "", "/a", "a/", "a//b", "..", "a/../b", "./a", ".hidden", "a b", "a\n", "\u00e9", "a\\b",
)  # fmt: skip

CODEC = {"keys": "keys-1", "values": "data-1"}
LONGEST_KEY = 496
LONGEST_ENTRY = LONGEST_KEY + 8

Pairs = Sequence[tuple[bytes, bytes]]


class _Crash(BaseException):
    """An error that is not an ``Exception``."""


def check_files(factory: Callable[[], Files]) -> None:
    """Check that files do what :class:`Files` promises.

    Args:
        factory: returns new, empty, writable files at each call.

    Raises:
        AssertionError: a promise is broken; the message says which.
    """
    for check in _FILE_CHECKS:
        check(factory())


def _check_round_trip(files: Files) -> None:
    big = bytes(range(256)) * 4096
    cases: list[tuple[str, list[bytes | memoryview]]] = [
        ("empty", []),
        ("one", [b"abc"]),
        ("a/b/c.d-e_f=1", [b"ab", b"", memoryview(b"cd")]),
        ("big", [big, memoryview(big)[7:]]),
    ]
    for name, chunks in cases:
        data = b"".join(chunks)
        expect(not files.exists(name), f"{name} exists before it is created")
        expect(files.create(name, iter(chunks)) == len(data), f"create({name}) must return size")
        expect(files.exists(name), f"{name} does not exist after create")
        expect(files.read(name) == data, f"read({name}) is not what was created")
        for chunk_bytes in (100_003, 1 << 22):
            parts = list(files.read_chunks(name, chunk_bytes))
            expect(b"".join(parts) == data, f"read_chunks({name}) is not what was created")
            lengths_ok = all(0 < len(part) <= chunk_bytes for part in parts)
            expect(lengths_ok, f"read_chunks({name}) has a chunk that is empty or too long")


def _check_create_once(files: Files) -> None:
    files.create("a/once", [b"first"])
    for content in (b"second", b"first", b""):
        again = functools.partial(files.create, "a/once", [content])
        require_raises(AlreadyExistsError, again)
        expect(files.read("a/once") == b"first", "a second create has changed the file")


def _check_failed_create_leaves_nothing(files: Files) -> None:
    def chunks(error: BaseException) -> Iterator[bytes]:
        yield b"x" * 100_000
        raise error

    for error in (LookupError("user code"), OSError("user code"), _Crash()):
        try:
            files.create("a/torn", chunks(error))
        except BaseException as raised:
            expect(raised is error, f"create must pass on {error!r}, got {raised!r}")
        else:
            expect(False, f"create must pass on {error!r}")
        expect(not files.exists("a/torn"), "a create that failed has left a file")
        expect(files.list("") == [], "a create that failed is listed")
    files.create("a/torn", [b"whole"])
    expect(files.read("a/torn") == b"whole", "the name is spoilt after a create that failed")


def _check_one_creator_wins(files: Files) -> None:
    start = threading.Barrier(RACING_CREATORS, timeout=60)

    def create(name: str, number: int) -> bool:
        start.wait()
        try:
            files.create(name, [bytes([number]) * 50_000] * 3)
        except AlreadyExistsError:
            return False
        return True

    with ThreadPoolExecutor(RACING_CREATORS) as threads:
        for name in ("race/1", "race/2", "race/3"):
            creators = range(RACING_CREATORS)
            won = list(threads.map(create, [name] * RACING_CREATORS, creators))
            expect(sum(won) == 1, f"of creates that race for one name {sum(won)} succeed, 1 must")
            winner = bytes([won.index(True)]) * 150_000
            expect(files.read(name) == winner, "the file is not that of the creator who won")


def _check_list(files: Files) -> None:
    expect(files.list("") == [], "new files must list nothing")
    names = ["a/b/1", "a/b/10", "a/b/2", "a/bc", "a0", "b"]
    for name in reversed(names):
        files.create(name, [b"."])
    for prefix in ("", "a", "a/", "a/b", "a/b/", "a/b/1", "b", "c", "c/d/", "b/"):
        expected = sorted(name for name in names if name.startswith(prefix))
        found = files.list(prefix)
        expect(found == expected, f"list({prefix!r}) must be {expected}, got {found}")


def _check_directories(files: Files) -> None:
    expect(files.directories() == [], "directories() of nothing is not empty")
    for name in ("b/1", "b/c/2", "a/3", "d"):
        files.create(name, [b"x"])
    expect(files.directories() == ["a", "b"], "directories() must be those in the root, sorted")
    expect(files.directories("b") == ["c"], "directories(b) must be those in b")
    for name in ("a", "d", "e"):
        expect(files.directories(name) == [], f"directories({name}) of none is not empty")


def _check_delete(files: Files) -> None:
    files.create("a/gone", [b"1"])
    files.create("a/kept", [b"2"])
    files.delete("a/gone")
    files.delete("a/gone")
    files.delete("never/there")
    expect(not files.exists("a/gone"), "a deleted file exists")
    expect(files.list("") == ["a/kept"], "delete must delete one file and no other")
    files.create("a/gone", [b"new"])
    expect(files.read("a/gone") == b"new", "a deleted name must be free again")


def _check_missing(files: Files) -> None:
    for name in ("missing", "no/such/file"):
        require_raises(FileNotFoundError, functools.partial(files.read, name))
        require_raises(FileNotFoundError, functools.partial(_read_in_chunks, files, name))
        expect(not files.exists(name), f"{name} exists and was never created")


def _check_names(files: Files) -> None:
    for name in _BAD_NAMES:
        require_raises(ValueError, functools.partial(files.create, name, [b"x"]))
        for call in (files.read, files.exists, files.delete):
            require_raises(ValueError, functools.partial(call, name))
    for prefix in ("/", "../", "a//", "."):
        require_raises(ValueError, functools.partial(files.list, prefix))
    expect(files.list("") == [], "a refused name has left a file")


_FILE_CHECKS: tuple[Callable[[Files], None], ...] = (
    _check_round_trip, _check_create_once, _check_failed_create_leaves_nothing,
    _check_one_creator_wins, _check_list, _check_directories, _check_delete, _check_missing,
    _check_names,
)  # fmt: skip


def _read_in_chunks(files: Files, name: str) -> bytes:
    return b"".join(files.read_chunks(name, 10))


def check_backend(make_backend: Callable[[], StateBackend]) -> None:
    """Check that versions do what :class:`StateBackend` promises.

    Args:
        make_backend: returns new and empty ones at each call.

    Raises:
        AssertionError: a promise is broken; the message says which.
    """
    for check in _BACKEND_CHECKS:
        check(make_backend())


def _store(partition: int = 0, name: str = "default") -> StoreId:
    return StoreId("stream-1", "counts", name, partition, 2)


def _commit(
    backend: StateBackend,
    parent: VersionId,
    count: int,
    puts: Pairs = (),
    removes: Sequence[bytes] = (),
    index: tuple[Sequence[bytes], Sequence[bytes]] = ((), ()),
    store: StoreId | None = None,
) -> PartitionCommit:
    changes = Changes(list(puts), list(removes), list(index[0]), list(index[1]), count)
    return backend.commit(store or _store(), parent, [changes], CODEC)


def _require_content(
    backend: StateBackend, version_id: VersionId, pairs: Pairs, index: Sequence[bytes] = ()
) -> None:
    with closing(backend.open(_store(), version_id)) as version:
        _require_version(version, version_id, pairs, index)
    version.close()


def _require_version(
    version: RawVersion, version_id: VersionId, pairs: Pairs, index: Sequence[bytes] = ()
) -> None:
    what = f"of {version_id}"
    require_equal(version.version_id, version_id, "reference of an open content")
    codec = CODEC if version_id.version else {}
    require_equal(dict(version.codec), codec, f"codec {what}")
    require_equal(list(version.scan()), list(pairs), f"scan {what}")
    require_equal(list(version.scan_index()), list(index), f"scan_index {what}")
    require_equal(version.count(), len(pairs), f"count {what}")
    expect(version.size_bytes() >= 0, f"size_bytes {what} must not be negative")
    records = dict(pairs)
    keys = [*reversed(records), b"?", *records]
    wanted = [records.get(key) for key in keys]
    require_equal(version.get_many(keys), wanted, f"get_many {what}")
    require_equal(version.get_many([]), [], f"get_many of no keys {what}")
    for key, record in pairs:
        require_equal(version.get(key), record, f"get({key!r:.60}) {what}")
        for other in (key + b"\0", key[:-1] or b"?"):
            require_equal(version.get(other), records.get(other), f"get({other!r:.60}) {what}")


def _check_empty(backend: StateBackend) -> None:
    _require_content(backend, EMPTY, [])
    committed = _commit(backend, EMPTY, 0)
    require_equal(committed.version_id.version, 1, "version after a commit without changes")
    _require_content(backend, committed.version_id, [])
    again = _commit(backend, committed.version_id, 0)
    require_equal(again.version_id.version, 2, "version after two commits without changes")


def _check_commit(backend: StateBackend) -> None:
    first = _commit(backend, EMPTY, 2, [(b"sa", b"1."), (b"sc", b"3.")], index=([b"t1", b"t2"], ()))
    require_equal(first.count, 2, "count of a commit")
    require_equal(first.partition, 0, "partition of a commit")
    expect(first.size_bytes > 0, "size_bytes of a commit must be its size")
    digest = "" if first.file is None else first.file.digest
    expect(digest != "", "digest of a commit must be unique")
    puts, index = [(b"sa", b"11."), (b"sb", b"2.")], ([b"t2", b"t3"], [b"t1", b"not there"])
    second = _commit(backend, first.version_id, 2, puts, [b"sc"], index)
    _require_content(backend, second.version_id, [(b"sa", b"11."), (b"sb", b"2.")], [b"t2", b"t3"])
    _require_content(backend, first.version_id, [(b"sa", b"1."), (b"sc", b"3.")], [b"t1", b"t2"])


def _check_checksums(backend: StateBackend) -> None:
    pairs = [(b"sa", b"1."), (b"sb", b"2.")]
    checksum = pairs_checksum(pairs)
    version_id = EMPTY
    for wanted, parts in (
        (checksum, [Changes([pair], [], [], [], 2, checksum) for pair in pairs]),
        (None, [Changes([], [], [], [], 2)]),
        (checksum, [Changes([], [], [], [], 2, checksum)]),
        (0, [Changes([], [key for key, _ in pairs], [], [], 0, 0)]),
    ):
        version_id = backend.commit(_store(), version_id, parts, CODEC).version_id
        with closing(backend.open(_store(), version_id)) as version:
            require_equal(version.checksum, wanted, f"checksum of {version_id}")
    with closing(backend.open(_store(), EMPTY)) as version:
        require_equal(version.checksum, 0, "checksum before the first commit")


def _check_scan_bounds(backend: StateBackend) -> None:
    keys = [b"\0", b"a", b"a\0", b"a\0\xff", b"ab", b"b", b"b\xff\xff", b"\xff" * 3]
    pairs = [(key, key + b".") for key in keys]
    version_id = _commit(backend, EMPTY, len(pairs), pairs).version_id
    version = backend.open(_store(), version_id)
    for start in (b"", *keys, b"0", b"\xff" * 4):
        for stop in (None, b"", *keys, b"c", b"\xff" * 4):
            found = [key for key, _ in version.scan(start, stop)]
            wanted = [key for key in keys if start <= key and (stop is None or key < stop)]
            require_equal(found, wanted, f"keys of scan({start!r}, {stop!r})")
    version.close()
    entries = sorted(keys)
    indexed = _commit(backend, version_id, len(pairs), index=(entries, ())).version_id
    version = backend.open(_store(), indexed)
    for stop in (None, b"", *keys, b"c"):
        wanted = [entry for entry in entries if stop is None or entry < stop]
        require_equal(list(version.scan_index(stop)), wanted, f"scan_index({stop!r})")
    version.close()


def _check_sizes(backend: StateBackend) -> None:
    keys = [b"k" * LONGEST_KEY, b"k" * (LONGEST_KEY - 1), b"k"]
    pairs = sorted((key, bytes(range(256)) * size) for size, key in enumerate(keys, 1))
    big = (b"z", bytes(range(256)) * 20_000)
    entry = b"\0" * 8 + b"e" * (LONGEST_ENTRY - 8)
    version_id = _commit(backend, EMPTY, 4, [*pairs, big], index=([entry], ())).version_id
    _require_content(backend, version_id, [*pairs, big], [entry])


def _check_many(backend: StateBackend) -> None:
    pairs = [(b"%08d" % number, b"%d." % number) for number in range(5_000)]
    keys = [key for key, _ in pairs]
    parts = [
        Changes(pairs[at : at + 1_000], [], keys[at : at + 1_000], [], 5_000)
        for at in range(0, 5_000, 1_000)
    ]
    version_id = backend.commit(_store(), EMPTY, iter(parts), CODEC).version_id
    _require_content(backend, version_id, pairs, keys)
    odd = [(key, b"new.") for key in keys[1::2]]
    parts = [
        Changes(odd[at : at + 500], keys[::2][at : at + 500], [], [], 2_500)
        for at in range(0, 2_500, 500)
    ]
    later = backend.commit(_store(), version_id, iter(parts), CODEC).version_id
    _require_content(backend, later, odd, keys)


def _check_attempts(backend: StateBackend) -> None:
    """Twins on one version, on two versions, and a version that is open while others commit."""
    root = _commit(backend, EMPTY, 1, [(b"sa", b"0.")]).version_id
    before = backend.open(_store(), root)
    twins = [
        _commit(backend, root, 2, [(b"sb", record)]).version_id for record in (b"1.", b"2.", b"1.")
    ]
    require_equal({twin.version for twin in twins}, {2}, "versions of twins")
    require_equal(len({twin.uid for twin in twins}), 3, "number of different uids of three twins")
    for twin, record in zip(twins, (b"1.", b"2.", b"1."), strict=True):
        _require_content(backend, twin, [(b"sa", b"0."), (b"sb", record)])
    _require_version(before, root, [(b"sa", b"0.")])
    before.close()
    children = [_commit(backend, twin, 1, [], [b"sa"]).version_id for twin in twins]
    for child, record in reversed(list(zip(children, (b"1.", b"2.", b"1."), strict=True))):
        _require_content(backend, child, [(b"sb", record)])
    _require_content(backend, root, [(b"sa", b"0.")])
    _require_content(backend, EMPTY, [])


def _check_open_together(backend: StateBackend) -> None:
    version_id, pairs = EMPTY, []
    version_ids = []
    for number in range(6):
        pair = (b"s%d" % number, b"%d." % number)
        pairs.append(pair)
        version_id = _commit(backend, version_id, number + 1, [pair]).version_id
        version_ids.append(version_id)
    opened = [backend.open(_store(), version_id) for version_id in version_ids]
    scans = [version.scan() for version in opened]
    firsts = [next(scan) for scan in scans]
    require_equal(firsts, [pairs[0]] * 6, "first pairs of contents that are open together")
    for number, scan in enumerate(scans):
        require_equal(list(scan), pairs[1 : number + 1], "rest of a content opened with others")
    for version in opened:
        version.close()


def _check_failed_commit(backend: StateBackend) -> None:
    root = _commit(backend, EMPTY, 1, [(b"sa", b"0.")]).version_id

    def parts(error: BaseException) -> object:
        yield Changes([(b"sb", b"1.")], [], [], [], 2)
        raise error

    for error in (LookupError("user code"), _Crash()):
        try:
            backend.commit(_store(), root, parts(error), CODEC)  # type: ignore[arg-type]
        except BaseException as raised:
            expect(raised is error, f"commit must pass on {error!r}, got {raised!r}")
        else:
            expect(False, f"commit must pass on {error!r}")
    _require_content(backend, root, [(b"sa", b"0.")])
    later = _commit(backend, root, 2, [(b"sb", b"2.")]).version_id
    _require_content(backend, later, [(b"sa", b"0."), (b"sb", b"2.")])


def _check_stores_are_apart(backend: StateBackend) -> None:
    stores = [_store(0), _store(1), _store(0, "other")]
    version_ids = [
        _commit(backend, EMPTY, 1, [(b"s", b"%d." % number)], store=store).version_id
        for number, store in enumerate(stores)
    ]
    for number, (store, version_id) in enumerate(zip(stores, version_ids, strict=True)):
        version = backend.open(store, version_id)
        require_equal(list(version.scan()), [(b"s", b"%d." % number)], f"content of {store}")
        version.close()
    foreign = functools.partial(backend.open, stores[1], version_ids[0])
    require_raises(CheckpointError, foreign, "open of another partition's content")


def _check_unknown(backend: StateBackend) -> None:
    for version_id in (VersionId(1, "00000000deadbeef"), VersionId(7, "ffffffffffffffff")):
        require_raises(CheckpointError, functools.partial(backend.open, _store(), version_id))
    known = _commit(backend, EMPTY, 1, [(b"s", b".")]).version_id
    other = VersionId(known.version + 1, known.uid)
    require_raises(CheckpointError, functools.partial(backend.open, _store(), other))
    _require_content(backend, known, [(b"s", b".")])


_BACKEND_CHECKS: tuple[Callable[[StateBackend], None], ...] = (
    _check_empty, _check_commit, _check_checksums, _check_scan_bounds, _check_sizes, _check_many,
    _check_attempts, _check_open_together, _check_failed_commit, _check_stores_are_apart,
    _check_unknown,
)  # fmt: skip


def expect(condition: bool, message: str) -> None:
    """Raise ``AssertionError`` unless *condition* holds."""
    if not condition:
        raise AssertionError(message)


def require_equal(found: object, wanted: object, what: str) -> None:
    """Raise ``AssertionError`` unless *found* equals *wanted*."""
    if found != wanted:
        raise AssertionError(f"{what} must be {wanted!r:.300}, got {found!r:.300}")


def require_raises(error: type[Exception], call: Callable[[], object], what: str = "") -> None:
    """Raise ``AssertionError`` unless *call* raises *error*."""
    try:
        call()
    except error:
        return
    raise AssertionError(f"{error.__name__} must be raised by {what or call}")
