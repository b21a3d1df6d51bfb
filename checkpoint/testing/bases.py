"""Conformance of :class:`checkpoint.state_store.base.Bases`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import closing

from checkpoint.errors import CheckpointError
from checkpoint.state_store.base import Base, Bases, Changes
from checkpoint.state_store.checksum import pairs_checksum
from checkpoint.stored_state import EMPTY, Reference, StoredPartition, StoreId
from checkpoint.testing.claims import require, require_equal, require_raises
from checkpoint.testing.one_fault import SimulatedCrash

CODEC = {"keys": "keys-1", "values": "data-1"}
LONGEST_KEY = 496
LONGEST_ENTRY = LONGEST_KEY + 8

Pairs = Sequence[tuple[bytes, bytes]]


def check_bases(make_bases: Callable[[], Bases]) -> None:
    """Check that contents do what :class:`Bases` promises.

    Args:
        make_bases: returns new and empty ones at each call.

    Raises:
        AssertionError: a promise is broken; the message says which.
    """
    for check in _CHECKS:
        check(make_bases())


def _store(partition: int = 0, name: str = "default") -> StoreId:
    return StoreId("stream-1", "counts", name, partition, 2)


def _commit(
    bases: Bases,
    base: Reference,
    count: int,
    puts: Pairs = (),
    removes: Sequence[bytes] = (),
    index: tuple[Sequence[bytes], Sequence[bytes]] = ((), ()),
    store: StoreId | None = None,
) -> StoredPartition:
    changes = Changes(list(puts), list(removes), list(index[0]), list(index[1]), count)
    return bases.commit(store or _store(), base, [changes], CODEC)


def _require_content(
    bases: Bases, reference: Reference, pairs: Pairs, index: Sequence[bytes] = ()
) -> None:
    with closing(bases.open(_store(), reference)) as base:
        _require_base(base, reference, pairs, index)
    base.close()


def _require_base(
    base: Base, reference: Reference, pairs: Pairs, index: Sequence[bytes] = ()
) -> None:
    what = f"of {reference}"
    require_equal(base.reference, reference, "reference of an open content")
    codec = CODEC if reference.version else {}
    require_equal(dict(base.codec), codec, f"codec {what}")
    require_equal(list(base.scan()), list(pairs), f"scan {what}")
    require_equal(list(base.scan_index()), list(index), f"scan_index {what}")
    require_equal(base.count(), len(pairs), f"count {what}")
    require(base.size_bytes() >= 0, f"size_bytes {what} must not be negative")
    records = dict(pairs)
    keys = [*reversed(records), b"?", *records]
    wanted = [records.get(key) for key in keys]
    require_equal(base.get_many(keys), wanted, f"get_many {what}")
    require_equal(base.get_many([]), [], f"get_many of no keys {what}")
    for key, record in pairs:
        require_equal(base.get(key), record, f"get({key!r:.60}) {what}")
        for other in (key + b"\0", key[:-1] or b"?"):
            require_equal(base.get(other), records.get(other), f"get({other!r:.60}) {what}")


def _check_empty(bases: Bases) -> None:
    _require_content(bases, EMPTY, [])
    committed = _commit(bases, EMPTY, 0)
    require_equal(committed.reference.version, 1, "version after a commit without changes")
    _require_content(bases, committed.reference, [])
    again = _commit(bases, committed.reference, 0)
    require_equal(again.reference.version, 2, "version after two commits without changes")


def _check_commit(bases: Bases) -> None:
    first = _commit(bases, EMPTY, 2, [(b"sa", b"1."), (b"sc", b"3.")], index=([b"t1", b"t2"], ()))
    require_equal(first.count, 2, "count of a commit")
    require_equal(first.partition, 0, "partition of a commit")
    require(first.size_bytes > 0, "size_bytes of a commit must be its size")
    digest = "" if first.file is None else first.file.digest
    require(digest != "", "digest of a commit must tell it from others")
    puts, index = [(b"sa", b"11."), (b"sb", b"2.")], ([b"t2", b"t3"], [b"t1", b"not there"])
    second = _commit(bases, first.reference, 2, puts, [b"sc"], index)
    _require_content(bases, second.reference, [(b"sa", b"11."), (b"sb", b"2.")], [b"t2", b"t3"])
    _require_content(bases, first.reference, [(b"sa", b"1."), (b"sc", b"3.")], [b"t1", b"t2"])


def _check_checksums(bases: Bases) -> None:
    pairs = [(b"sa", b"1."), (b"sb", b"2.")]
    checksum = pairs_checksum(pairs)
    reference = EMPTY
    for wanted, parts in (
        (checksum, [Changes([pair], [], [], [], 2, checksum) for pair in pairs]),
        (None, [Changes([], [], [], [], 2)]),
        (checksum, [Changes([], [], [], [], 2, checksum)]),
        (0, [Changes([], [key for key, _ in pairs], [], [], 0, 0)]),
    ):
        reference = bases.commit(_store(), reference, parts, CODEC).reference
        with closing(bases.open(_store(), reference)) as base:
            require_equal(base.checksum, wanted, f"checksum of {reference}")
    with closing(bases.open(_store(), EMPTY)) as base:
        require_equal(base.checksum, 0, "checksum before the first commit")


def _check_scan_bounds(bases: Bases) -> None:
    keys = [b"\0", b"a", b"a\0", b"a\0\xff", b"ab", b"b", b"b\xff\xff", b"\xff" * 3]
    pairs = [(key, key + b".") for key in keys]
    reference = _commit(bases, EMPTY, len(pairs), pairs).reference
    base = bases.open(_store(), reference)
    for start in (b"", *keys, b"0", b"\xff" * 4):
        for stop in (None, b"", *keys, b"c", b"\xff" * 4):
            found = [key for key, _ in base.scan(start, stop)]
            wanted = [key for key in keys if start <= key and (stop is None or key < stop)]
            require_equal(found, wanted, f"keys of scan({start!r}, {stop!r})")
    base.close()
    entries = sorted(keys)
    indexed = _commit(bases, reference, len(pairs), index=(entries, ())).reference
    base = bases.open(_store(), indexed)
    for stop in (None, b"", *keys, b"c"):
        wanted = [entry for entry in entries if stop is None or entry < stop]
        require_equal(list(base.scan_index(stop)), wanted, f"scan_index({stop!r})")
    base.close()


def _check_sizes(bases: Bases) -> None:
    keys = [b"k" * LONGEST_KEY, b"k" * (LONGEST_KEY - 1), b"k"]
    pairs = sorted((key, bytes(range(256)) * size) for size, key in enumerate(keys, 1))
    big = (b"z", bytes(range(256)) * 20_000)
    entry = b"\0" * 8 + b"e" * (LONGEST_ENTRY - 8)
    reference = _commit(bases, EMPTY, 4, [*pairs, big], index=([entry], ())).reference
    _require_content(bases, reference, [*pairs, big], [entry])


def _check_many(bases: Bases) -> None:
    pairs = [(b"%08d" % number, b"%d." % number) for number in range(5_000)]
    keys = [key for key, _ in pairs]
    parts = [
        Changes(pairs[at : at + 1_000], [], keys[at : at + 1_000], [], 5_000)
        for at in range(0, 5_000, 1_000)
    ]
    reference = bases.commit(_store(), EMPTY, iter(parts), CODEC).reference
    _require_content(bases, reference, pairs, keys)
    odd = [(key, b"new.") for key in keys[1::2]]
    parts = [
        Changes(odd[at : at + 500], keys[::2][at : at + 500], [], [], 2_500)
        for at in range(0, 2_500, 500)
    ]
    later = bases.commit(_store(), reference, iter(parts), CODEC).reference
    _require_content(bases, later, odd, keys)


def _check_attempts(bases: Bases) -> None:
    """Twins on one base, on two bases, and a base that is open while others commit."""
    root = _commit(bases, EMPTY, 1, [(b"sa", b"0.")]).reference
    before = bases.open(_store(), root)
    twins = [
        _commit(bases, root, 2, [(b"sb", record)]).reference for record in (b"1.", b"2.", b"1.")
    ]
    require_equal({twin.version for twin in twins}, {2}, "versions of twins")
    require_equal(len({twin.uid for twin in twins}), 3, "number of different uids of three twins")
    for twin, record in zip(twins, (b"1.", b"2.", b"1."), strict=True):
        _require_content(bases, twin, [(b"sa", b"0."), (b"sb", record)])
    _require_base(before, root, [(b"sa", b"0.")])
    before.close()
    children = [_commit(bases, twin, 1, [], [b"sa"]).reference for twin in twins]
    for child, record in reversed(list(zip(children, (b"1.", b"2.", b"1."), strict=True))):
        _require_content(bases, child, [(b"sb", record)])
    _require_content(bases, root, [(b"sa", b"0.")])
    _require_content(bases, EMPTY, [])


def _check_open_together(bases: Bases) -> None:
    reference, pairs = EMPTY, []
    references = []
    for number in range(6):
        pair = (b"s%d" % number, b"%d." % number)
        pairs.append(pair)
        reference = _commit(bases, reference, number + 1, [pair]).reference
        references.append(reference)
    opened = [bases.open(_store(), reference) for reference in references]
    scans = [base.scan() for base in opened]
    firsts = [next(scan) for scan in scans]
    require_equal(firsts, [pairs[0]] * 6, "first pairs of contents that are open together")
    for number, scan in enumerate(scans):
        require_equal(list(scan), pairs[1 : number + 1], "rest of a content beside others")
    for base in opened:
        base.close()


def _check_failed_commit(bases: Bases) -> None:
    root = _commit(bases, EMPTY, 1, [(b"sa", b"0.")]).reference

    def parts(error: BaseException) -> object:
        yield Changes([(b"sb", b"1.")], [], [], [], 2)
        raise error

    for error in (LookupError("user code"), SimulatedCrash()):
        try:
            bases.commit(_store(), root, parts(error), CODEC)  # type: ignore[arg-type]
        except BaseException as raised:
            require(raised is error, f"commit must pass on {error!r}, got {raised!r}")
        else:
            require(False, f"commit must pass on {error!r}")
    _require_content(bases, root, [(b"sa", b"0.")])
    later = _commit(bases, root, 2, [(b"sb", b"2.")]).reference
    _require_content(bases, later, [(b"sa", b"0."), (b"sb", b"2.")])


def _check_stores_are_apart(bases: Bases) -> None:
    stores = [_store(0), _store(1), _store(0, "other")]
    references = [
        _commit(bases, EMPTY, 1, [(b"s", b"%d." % number)], store=store).reference
        for number, store in enumerate(stores)
    ]
    for number, (store, reference) in enumerate(zip(stores, references, strict=True)):
        base = bases.open(store, reference)
        require_equal(list(base.scan()), [(b"s", b"%d." % number)], f"content of {store}")
        base.close()
    foreign = functools.partial(bases.open, stores[1], references[0])
    require_raises(CheckpointError, foreign, "open of another partition's content")


def _check_unknown(bases: Bases) -> None:
    for reference in (Reference(1, "00000000deadbeef"), Reference(7, "ffffffffffffffff")):
        require_raises(CheckpointError, functools.partial(bases.open, _store(), reference))
    known = _commit(bases, EMPTY, 1, [(b"s", b".")]).reference
    other = Reference(known.version + 1, known.uid)
    require_raises(CheckpointError, functools.partial(bases.open, _store(), other))
    _require_content(bases, known, [(b"s", b".")])


_CHECKS: tuple[Callable[[Bases], None], ...] = (
    _check_empty, _check_commit, _check_checksums, _check_scan_bounds, _check_sizes, _check_many,
    _check_attempts, _check_open_together, _check_failed_commit, _check_stores_are_apart,
    _check_unknown,
)  # fmt: skip
