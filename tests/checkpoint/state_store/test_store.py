"""Stores in memory, spilling, and on files fulfil their contract."""

from __future__ import annotations

import functools
import itertools
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoint import CorruptCheckpointError, StorageRefusedError, open_files
from checkpoint.errors import Damage
from checkpoint.state_store import (
    EMPTY,
    DataValues,
    LmdbBackend,
    MemoryBackend,
    PickleValues,
    StateStore,
    StateStoreUseError,
    StoreId,
    VersionId,
)
from checkpoint.state_store.backend import StateBackend
from checkpoint.state_store.classes import Classes
from checkpoint.state_store.plain_pickles import NotPlainError
from checkpoint.state_store.store import CodecMismatchError
from checkpoint.testing import check_backend
from tests.dstreams.spark.sample_keys import Colour, Point, User
from tests.support.faults import FaultyBackend, SimulatedCrash
from tests.support.store_checks import check_state_store

ID = StoreId("stream-1", "counts", "default", 0, 1)

MakeBackend = Callable[[], StateBackend]


@pytest.fixture(params=["memory", "lmdb"])
def make_backend(request: pytest.FixtureRequest, tmp_path: Path) -> MakeBackend:
    numbers = itertools.count()

    def make() -> StateBackend:
        if request.param == "memory":
            return MemoryBackend()
        root = tmp_path / str(next(numbers))
        (root / "local").mkdir(parents=True, mode=0o700)
        return LmdbBackend(open_files(str(root / "files")), str(root / "local"))

    return make


def test_backends_conform(make_backend: MakeBackend) -> None:
    """Backends in memory and on files fulfil the contract."""
    check_backend(make_backend)


@pytest.mark.deep
@pytest.mark.parametrize("spill_bytes", [500, 64 << 20], ids=["spilling", "in memory"])
def test_store_conforms(make_backend: MakeBackend, spill_bytes: int) -> None:
    """A store fulfils its contract on each backend."""
    for checksums in (False, True):
        check_state_store(
            lambda checksums=checksums: StateStore(  # type: ignore[misc]
                make_backend(), spill_bytes=spill_bytes, checksums=checksums
            )
        )


def test_store_conforms_with_pickle() -> None:
    """The pickle codec changes nothing else."""
    check_state_store(lambda: StateStore(MemoryBackend(), values=PickleValues()))


def test_codec_is_recorded() -> None:
    """The codec and the schema of the caller are stored."""
    backend = MemoryBackend()
    store = StateStore(backend, schema="(count, last seen)")
    with store.writer(ID, EMPTY) as writer:
        version_id = writer.commit().version_id
    wanted = {"keys": "keys-1", "values": store.values.name, "schema": "(count, last seen)"}
    assert backend.open(ID, version_id).codec == wanted


@pytest.mark.parametrize(
    ("opened_with", "fits"),
    [
        ({"values": DataValues()}, True),
        ({"values": DataValues(Classes(frozenset({__name__})))}, True),
        ({"values": PickleValues()}, False),
        ({"schema": "(count, last seen)"}, False),
    ],
    ids=str,
)
def test_codec_must_fit(opened_with: dict[str, Any], fits: bool) -> None:
    """A store opens only with its codec, or with more classes; the error names the codec."""
    backend = FaultyBackend(MemoryBackend(), 0)
    with StateStore(backend, schema="count").writer(ID, EMPTY) as writer:
        version_id = writer.commit().version_id
    store = StateStore(backend, **{"schema": "count", **opened_with})
    for open_ in (store.reader, store.writer):
        if fits:
            with open_(ID, version_id):
                pass
        else:
            with pytest.raises(CodecMismatchError, match=r"written as '.*', got"):
                open_(ID, version_id)
    with store.writer(ID, EMPTY) as writer:
        writer.commit()
    assert backend.opened == 0


def test_store_can_be_sent_to_tasks(tmp_path: Path) -> None:
    """A store on files can be pickled for tasks."""
    (tmp_path / "local").mkdir(mode=0o700)
    store = StateStore(LmdbBackend(open_files(str(tmp_path / "files")), str(tmp_path / "local")))
    copy = pickle.loads(pickle.dumps(store))
    with copy.writer(ID, EMPTY) as writer:
        writer.put("a", 1)
        version_id = writer.commit().version_id
    with store.reader(ID, version_id) as reader:
        assert reader.get("a") == 1


@pytest.mark.parametrize(
    ("end", "remedy"),
    [
        ("committed", "is committed; open a writer of what the commit returned"),
        ("aborted", "is aborted; open another writer"),
    ],
)
def test_message_at_the_end(end: str, remedy: str) -> None:
    """The error of an ended writer names the store, how it ended and a remedy."""
    writer = StateStore(MemoryBackend()).writer(ID, EMPTY)
    if end == "committed":
        writer.commit()
    else:
        writer.abort()
    with pytest.raises(StateStoreUseError) as caught:
        writer.put("a", 1)
    assert str(caught.value) == (
        "the writer of version 0 of store 'default' of operator 'counts', partition 0, " + remedy
    )


@pytest.mark.parametrize(
    ("error", "effect"),
    [
        (error, effect)
        for error in (SimulatedCrash, CorruptCheckpointError, StorageRefusedError)
        for effect in ("before", "during", "after")
        if (error, effect) != (StorageRefusedError, "after")  # such a refusal would be a lie
    ],
)
def test_every_operation_may_fail(effect: str, error: type[BaseException]) -> None:
    """Errors are passed on, the old version is intact, and nothing stays open."""
    inner = MemoryBackend()
    root = write_root(StateStore(inner))
    is_corrupt = error is CorruptCheckpointError
    make = (lambda text: error(text, "", "", "", Damage.DAMAGED)) if is_corrupt else error
    for at in itertools.count(1):
        backend = FaultyBackend(inner, at, effect, make)  # type: ignore[arg-type]
        try:
            run_batch(StateStore(backend, spill_bytes=600), root)
        except error:
            assert backend.fired
        else:
            assert not backend.fired
            break
        assert backend.opened == 0
        assert read_all(StateStore(inner), root) == {"a": 1, "b": 2, "c": 3}
    assert at > 10


def write_root(store: StateStore) -> VersionId:
    with store.writer(ID, EMPTY) as writer:
        for value, key in enumerate("abc", 1):
            writer.put(key, value, timeout_ms=value)
        return writer.commit().version_id


def run_batch(store: StateStore, root: VersionId) -> None:
    writer = store.writer(ID, root)
    try:
        for key in "abcd":
            writer.put(key, (writer.get(key) or 0) + 1, timeout_ms=2)
        for key, _, _ in writer.due(2):
            writer.remove(key)
        list(writer.items())
        writer.update([("a", 1), ("e", 2)], lambda given, value: given)
        writer.commit()
    finally:
        writer.abort()
        assert writer.ended


def read_all(store: StateStore, version_id: VersionId) -> dict[object, object]:
    with store.reader(ID, version_id) as reader:
        return dict(reader.items())


def test_commit_that_fails_aborts() -> None:
    """After a failed commit the writer cannot be used."""
    inner = MemoryBackend()
    backend = FaultyBackend(inner, 3, error=StorageRefusedError)
    writer = StateStore(backend).writer(ID, EMPTY)
    with pytest.raises(StorageRefusedError, match="operation 3: get"):
        writer.put("a", 1)
    backend = FaultyBackend(inner, 4, error=StorageRefusedError)
    writer = StateStore(backend).writer(ID, EMPTY)
    writer.put("a", 1)
    with pytest.raises(StorageRefusedError, match="operation 4: commit"):
        writer.commit()
    assert writer.ended == "aborted"
    with pytest.raises(StateStoreUseError):
        writer.commit()
    assert inner.version_ids(ID) == []


def test_keys_as_they_were_put() -> None:
    """Scans return a key as it was last put."""
    keys = [True, 2.0, ("a", 1.0), Colour.RED, User("anna", 1), Point(1.0, "y")]
    for values in (DataValues(Classes(frozenset({Point.__module__}))), PickleValues()):
        store = StateStore(MemoryBackend(), values)
        with store.writer(ID, EMPTY) as writer:
            for key in keys:
                writer.put(key, 0)
            found = {repr(key) for key, _ in writer.items()}
            writer.put(1, 0)
            assert [key for key, _ in writer.range(1, 2)] == [1]
        assert found == set(map(repr, keys))


def test_keys_of_classes_that_are_not_named() -> None:
    """A key of a data class that is not registered is rejected."""
    with StateStore(MemoryBackend()).writer(ID, EMPTY) as writer:
        for key in (Colour.RED, User("anna", 1), Point(1.0, "y"), ("a", Colour.RED)):
            put_many = functools.partial(writer.put_many, {key: 0})
            update = functools.partial(writer.update, [(key, 0)], lambda given, value: given)
            for call in (functools.partial(writer.put, key, 0), put_many, update):
                with pytest.raises(NotPlainError, match="that the program does not register"):
                    call()
        assert writer.count() == 0


def test_equal_keys_of_several_classes_are_one() -> None:
    """A named tuple is the same key as the equal tuple."""
    classes = Classes(frozenset({Point.__module__}))
    with StateStore(MemoryBackend(), DataValues(classes)).writer(ID, EMPTY) as writer:
        writer.put(Point(1, "y"), "named")
        assert writer.get((1.0, "y")) == "named"
        writer.put((1, "y"), "plain")
        ((key, value),) = writer.items()
        assert (type(key), key, value) == (tuple, (1, "y"), "plain")


@pytest.mark.parametrize("longest", [475, 600])
def test_scans_by_long_bounds(longest: int) -> None:
    """Bounds longer than a shortened key find exactly the right keys."""
    with StateStore(MemoryBackend()).writer(ID, EMPTY) as writer:
        lengths = [460, 466, 470, longest]
        writer.update([("z" * length, length) for length in lengths], lambda given, value: given)
        assert sorted(length for _, length in writer.prefix("z" * 470)) == [470, longest]
        assert [length for _, length in writer.range("z" * 467, "z" * 475)] == [470]


def test_size_counts_changes() -> None:
    """The size grows with changes in memory."""
    store = StateStore(MemoryBackend())
    with store.writer(ID, EMPTY) as writer:
        empty = writer.size_bytes()
        writer.put("a", "x" * 1000)
        assert writer.size_bytes() >= empty + 1000
        version_id = writer.commit().version_id
    with store.reader(ID, version_id) as reader:
        assert 1000 < reader.size_bytes() < 1100


def test_values_that_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value above the limit is rejected, and nothing is changed."""
    monkeypatch.setattr("checkpoint.state_store.write_buffer.MAX_VALUE_BYTES", 1000)
    with StateStore(MemoryBackend()).writer(ID, EMPTY) as writer:
        with pytest.raises(ValueError, match="must be at most 1000 bytes when encoded, got"):
            writer.put("a", "x" * 2000, timeout_ms=1)
        assert (writer.count(), list(writer.items()), list(writer.due(5))) == (0, [], [])


def test_update_pulls_lazily_and_in_order() -> None:
    """Any number of pairs can be updated, in order."""
    seen = []

    def pairs() -> Iterator[tuple[int, int]]:
        yield from ((number % 3_000, number) for number in range(5_000))

    with StateStore(MemoryBackend()).writer(ID, EMPTY) as writer:
        writer.update(pairs(), lambda given, value: seen.append(given) or (value or 0) + 1)
        assert seen == list(range(5_000))
        assert writer.count() == 3_000
        assert sum(value for _, value in writer.items()) == 5_000


def test_error_of_a_step_is_passed_on() -> None:
    """After an error of a step the writer can be aborted."""
    with StateStore(MemoryBackend()).writer(ID, EMPTY) as writer:
        with pytest.raises(ZeroDivisionError):
            writer.update([("a", 0)], lambda given, value: 1 // given)
        with pytest.raises(TypeError, match="not plain data"):
            writer.update([("a", 0)], lambda given, value: object())
        assert writer.count() == 0


def _add(given: int, value: int | None) -> int:
    return given + (value or 0)


@pytest.mark.parametrize("spill_bytes", [64 << 20, 20_000], ids=["memory", "spill"])
@pytest.mark.parametrize(
    "between",
    ["nothing", "get", "put", "put_many", "remove", "scan", "timeout", "behind", "again"],
)
def test_updates_in_order_and_what_else_a_writer_does(between: str, spill_bytes: int) -> None:
    """Updates in key order can be mixed with other changes."""
    store = StateStore(MemoryBackend(), spill_bytes=spill_bytes)
    model: dict[str, int] = {}
    version_id = EMPTY
    for start in (0, 300):
        with store.writer(ID, version_id) as writer:
            for first in (start, start + 600):
                pairs = [(f"k{number:04d}", number) for number in range(first, first + 600)]
                if between == "behind":
                    pairs = pairs[300:] + pairs[:300]
                writer.update(pairs, _add)
                model.update({key: _add(given, model.get(key)) for key, given in pairs})
                key, later = f"k{first + 1:04d}", f"k{first + 599:04d}"
                if between == "get":
                    assert [writer.get(key), writer.get_many([later])] == [
                        model[key],
                        [model[later]],
                    ]
                elif between == "put":
                    writer.put(key, -1)
                    model[key] = -1
                elif between == "put_many":
                    writer.put_many({later: -1, key: -2})
                    model.update({later: -1, key: -2})
                elif between == "remove":
                    writer.remove(key)
                    del model[key]
                elif between == "scan":
                    assert dict(writer.items()) == model
                elif between == "timeout":
                    writer.put(key, -3, timeout_ms=5)
                    assert [due for due, _, _ in writer.take_due(10)] == [key]
                    del model[key]
                elif between == "again":
                    writer.update([(key, 1), (key, 2)], _add)
                    model[key] += 3
                assert writer.count() == len(model)
            version_id = writer.commit().version_id
    with store.reader(ID, version_id) as reader:
        assert dict(reader.items()) == model


def test_a_step_that_looks_at_its_own_store() -> None:
    """A step that reads its own store does not leave an outdated cache."""
    store = StateStore(MemoryBackend())
    with store.writer(ID, EMPTY) as writer:
        writer.update([("a", 1), ("b", 2)], lambda given, _: given + (writer.get("b") or 0))
        writer.put("b", 5)
        assert [writer.get("b"), writer.count()] == [5, 2]
        writer.update([("c", 1), ("d", 2)], lambda given, _: given + writer.get("b"))
        writer.remove("c")
        assert dict(writer.items()) == {"a": 1, "b": 5, "d": 7}
        assert writer.count() == 3


def test_equal_changes_in_memory_have_one_digest() -> None:
    """The digest of a commit in memory depends only on its changes."""
    found = []
    for keys in ("abc", "cab"):
        with StateStore(MemoryBackend()).writer(ID, EMPTY) as writer:
            writer.update([(key, 1) for key in keys], _add)
            committed = writer.commit()
        assert committed.file is not None
        found.append((committed.file.digest, committed.size_bytes))
    assert found[0] == found[1]
