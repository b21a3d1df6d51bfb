"""Random programs of versions, readers and writers: every store agrees with a dict."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, precondition, rule

from checkpoint import open_files
from checkpoint.state_store import EMPTY, LmdbBackend, MemoryBackend, StateStore, StoreId, VersionId
from checkpoint.state_store.backend import StateBackend
from checkpoint.state_store.store import StateReader, StateWriter
from tests.support.store_checks import Model, require_content

keys = st.one_of(
    st.sampled_from(["", "a", "b", "ab", "z" * 500, "z" * 501]),
    st.sampled_from([0, 1, True, 1.0, 2**64, 0.5, b"a", None]),
    st.tuples(st.sampled_from(["u", "v"]), st.integers(0, 2)),
)
values = st.one_of(st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2))
timeouts = st.none() | st.integers(0, 12)


class StoreMachine(RuleBasedStateMachine):
    """Writers on any committed version, each compared with a dict."""

    spill_bytes: ClassVar[int] = 64 << 20

    version_ids = Bundle("version_ids")
    writers = Bundle("writers")

    def __init__(self) -> None:
        super().__init__()
        self.store = StateStore(self.make_backend(), spill_bytes=self.spill_bytes, checksums=True)
        self.store_id = StoreId("stream-1", "counts", "default", 0, 1)
        self.models: dict[VersionId, Model] = {EMPTY: {}}

    def make_backend(self) -> StateBackend:
        return MemoryBackend()

    @rule(target=writers, data=st.data())
    def open_writer(self, data: st.DataObject) -> tuple[StateWriter, Model]:
        version_id = data.draw(st.sampled_from(list(self.models)))
        writer = self.store.writer(self.store_id, version_id)
        return writer, dict(self.models[version_id])

    @rule(writer=writers, key=keys, value=values, timeout_ms=timeouts)
    def put(self, writer: tuple[StateWriter, Model], key: Any, value: Any, timeout_ms: Any) -> None:
        writer[0].put(key, value, timeout_ms)
        writer[1][key] = (value, timeout_ms)

    @rule(writer=writers, key=keys)
    def remove(self, writer: tuple[StateWriter, Model], key: Any) -> None:
        writer[0].remove(key)
        writer[1].pop(key, None)

    @rule(writer=writers, key=keys, value=values, timeout_ms=timeouts)
    def get_then_put(
        self, writer: tuple[StateWriter, Model], key: Any, value: Any, timeout_ms: Any
    ) -> None:
        assert writer[0].get(key) == writer[1].get(key, (None,))[0]
        self.put(writer, key, value, timeout_ms)

    @rule(writer=writers, pairs=st.lists(st.tuples(keys, st.none() | values), max_size=4))
    def update(self, writer: tuple[StateWriter, Model], pairs: list[tuple[Any, Any]]) -> None:
        store, model = writer
        store.update(pairs, lambda given, value: None if given is None else [given, value])
        for key, given in pairs:
            before = model.get(key, (None,))[0]
            model.pop(key, None)
            if given is not None:
                model[key] = ([given, before], None)

    @rule(writer=writers, given=st.dictionaries(keys, st.none() | values, max_size=4))
    def update_many(self, writer: tuple[StateWriter, Model], given: dict[Any, Any]) -> None:
        store, model = writer
        new = list(given.values())
        store.update_many(
            list(given),
            lambda start, old: (
                None if new[place] is None else [new[place], value]
                for place, value in enumerate(old, start)
            ),
        )
        for key, value in given.items():
            before = model.pop(key, (None,))[0]
            if value is not None:
                model[key] = ([value, before], None)

    @rule(writer=writers, wanted=st.lists(keys, max_size=4))
    def get_many(self, writer: tuple[StateWriter, Model], wanted: list[Any]) -> None:
        store, model = writer
        found = store.get_many(wanted)
        assert found == [model.get(key, (None,))[0] for key in wanted]

    @rule(writer=writers, new=st.dictionaries(keys, values, max_size=4), reads=st.booleans())
    def put_many(self, writer: tuple[StateWriter, Model], new: dict[Any, Any], reads: bool) -> None:
        store, model = writer
        if reads:
            store.get_many(list(new))
        store.put_many(new)
        model.update({key: (value, None) for key, value in new.items()})

    @rule(
        writer=writers,
        new=st.dictionaries(keys, st.tuples(values, st.integers(0, 12)), max_size=4),
        reads=st.booleans(),
    )
    def put_many_with_timeouts(
        self, writer: tuple[StateWriter, Model], new: dict[Any, Any], reads: bool
    ) -> None:
        store, model = writer
        if reads:
            assert store.has_many(list(new)) == [key in model for key in new]
        timeouts_ms = [timeout_ms for _, timeout_ms in new.values()]
        store.put_many({key: value for key, (value, _) in new.items()}, timeouts_ms)
        model.update(new)

    @rule(writer=writers, wanted=st.lists(keys, max_size=4))
    def has_many(self, writer: tuple[StateWriter, Model], wanted: list[Any]) -> None:
        store, model = writer
        assert store.has_many(wanted) == [key in model for key in wanted]

    @rule(writer=writers, until_ms=st.integers(-1, 14), near=st.lists(keys, max_size=2))
    def remove_due(self, writer: tuple[StateWriter, Model], until_ms: int, near: list[Any]) -> None:
        store, model = writer
        wanted = [k for k, (_, t) in model.items() if t is not None and t < until_ms]
        store.get_many(near)
        assert store.remove_due(until_ms) == len(wanted)
        for key in wanted:
            del model[key]

    @rule(writer=writers, until_ms=st.integers(-1, 14), removes=st.booleans())
    def due(self, writer: tuple[StateWriter, Model], until_ms: int, removes: bool) -> None:
        store, model = writer
        wanted = {k: (v, t) for k, (v, t) in model.items() if t is not None and t < until_ms}
        found = {}
        for key, value, timeout_ms in store.due(until_ms):
            found[key] = (value, timeout_ms)
            if removes:
                store.remove(key)
                del model[key]
        assert found == wanted

    @rule(writer=writers, until_ms=st.integers(-1, 14), near=st.lists(keys, max_size=2))
    def take_due(self, writer: tuple[StateWriter, Model], until_ms: int, near: list[Any]) -> None:
        store, model = writer
        wanted = {k: (v, t) for k, (v, t) in model.items() if t is not None and t < until_ms}
        store.get_many(near)
        found = {key: (value, time_ms) for key, value, time_ms in store.take_due(until_ms)}
        assert found == wanted
        for key in wanted:
            del model[key]

    @rule(writer=writers, prefix=st.sampled_from(["", "a", "z" * 500, ("u",), (), b""]))
    def prefix(self, writer: tuple[StateWriter, Model], prefix: Any) -> None:
        store, model = writer
        found = dict(store.prefix(prefix))
        wanted = {
            key: value
            for key, (value, _) in model.items()
            if type(key) is type(prefix) and key[: len(prefix)] == prefix
        }
        assert found == wanted

    @rule(
        writer=writers,
        bounds=st.sampled_from([("a", "c"), (None, "z" * 501), (0, 3), (None, (2,)), ("b", None)]),
        shows=st.booleans(),
    )
    def take_range(
        self, writer: tuple[StateWriter, Model], bounds: tuple[Any, Any], shows: bool
    ) -> None:
        store, model = writer
        wanted = dict(store.range(*bounds))
        assert {key: model[key][0] for key in wanted} == wanted
        if shows:
            taken = store.take_range(*bounds)
            assert dict(pair for part in taken for pair in zip(*part, strict=True)) == wanted
        else:
            assert store.remove_range(*bounds) == len(wanted)
        for key in wanted:
            del model[key]

    @rule(writer=writers)
    def look(self, writer: tuple[StateWriter, Model]) -> None:
        require_content(writer[0], writer[1], "a writer")

    @precondition(lambda self: len(self.models) < 9)
    @rule(writer=consumes(writers))
    def commit(self, writer: tuple[StateWriter, Model]) -> None:
        store, model = writer
        committed = store.commit()
        assert committed.version_id.version == store.version_id.version + 1
        assert committed.count == len(model)
        self.models[committed.version_id] = model

    @rule(writer=consumes(writers))
    def abort(self, writer: tuple[StateWriter, Model]) -> None:
        writer[0].abort()

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        version_id = data.draw(st.sampled_from(list(self.models)))
        with self.store.reader(self.store_id, version_id) as reader:
            self.check_reader(reader, self.models[version_id])

    def check_reader(self, reader: StateReader, model: Model) -> None:
        require_content(reader, model, "a reader")
        wanted = {k: (v, t) for k, (v, t) in model.items() if t is not None and t < 6}
        assert {key: (value, t) for key, value, t in reader.due(6)} == wanted

    def teardown(self) -> None:
        for version_id, model in self.models.items():
            with self.store.reader(self.store_id, version_id) as reader:
                self.check_reader(reader, model)


class SpillingMachine(StoreMachine):
    """A store with memory for two or three changes."""

    spill_bytes = 700


class LmdbMachine(StoreMachine):
    """A store on files, with a replica."""

    def make_backend(self) -> StateBackend:
        self.root = Path(tempfile.mkdtemp())
        (self.root / "local").mkdir(mode=0o700)
        return LmdbBackend(open_files(str(self.root / "files")), str(self.root / "local"))

    def teardown(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self.root)
            super().teardown()


@pytest.mark.deep
@pytest.mark.parametrize(
    ("machine", "programs"), [(StoreMachine, 60), (SpillingMachine, 30), (LmdbMachine, 25)]
)
def test_store_agrees_with_a_dict(machine: type[StoreMachine], programs: int) -> None:
    """After any operations on any version, the store has the content of a dict."""
    case = machine.TestCase
    case.settings = settings(
        max_examples=programs,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    case("runTest").runTest()
