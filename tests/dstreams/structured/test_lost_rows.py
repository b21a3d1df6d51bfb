"""Rows that are lost after the state was made, and come out otherwise when computed again."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dstreams.errors import InvalidStreamError
from dstreams.spark.state_store_rdd import StateStoreRDD
from dstreams.spark.state_version import StateVersion
from dstreams.state.group_state import GroupState
from dstreams.structured import StreamingDataset
from tests.dstreams.structured.conftest import MakeSession
from tests.dstreams.structured.runs import QueryRun

Build = Callable[[StreamingDataset, StreamingDataset], StreamingDataset]


def itself(record: Any) -> Any:
    return record


def tag(key: str, values: Iterator[str], state: GroupState) -> list[tuple[str, str]]:
    """Return the tag of a key: the first time one that is drawn."""
    if not state.exists:
        state.update(secrets.token_hex(8))
    return [(key, state.get)]


def tagged(words: StreamingDataset) -> StreamingDataset:
    return words.groupByKey(itself).flatMapGroupsWithState(tag, "append")


@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lose what is kept of rows, whenever an operator has made its state."""
    made: list[StateStoreRDD] = []
    force = StateStoreRDD.force

    def force_and_lose(self: StateStoreRDD) -> StateVersion:
        version = force(self)
        made.append(self)
        for rdd in made:
            rdd.unpersist()
        return version

    monkeypatch.setattr(StateStoreRDD, "force", force_and_lose)


PLANS: dict[str, Build] = {
    "alone": lambda words, other: tagged(words),
    "union": lambda words, other: tagged(words).union(other),
    "another state": lambda words, other: tagged(words).dropDuplicates(),
}


@pytest.mark.deep
@pytest.mark.parametrize("name", PLANS)
def test_other_rows_are_an_error(make_session: MakeSession, losing: None, name: str) -> None:
    """Rows that do not fit the state go to no sink and into no other state."""
    run = QueryRun(make_session(), PLANS[name], "append", inputs=2)
    with pytest.raises(RuntimeError, match="to the records before the stateful operation"):
        run.add("a", "b")


@pytest.mark.parametrize("checksums", ["true", "false"])
def test_checksums(make_session: MakeSession, checksums: str) -> None:
    """Stores of a query carry checksums where the setting says so."""
    session = make_session(**{"spark.dstreams.state.checksums": checksums})
    run = QueryRun(session, lambda words: words.dropDuplicates(), "append")
    assert run.add("a", "a") == ["a"]
    store = run.query._execution.states.store
    assert store.checksums is (checksums == "true")


def test_wrong_settings(make_session: MakeSession) -> None:
    """A setting that says neither is refused when the query starts, by its name."""
    session = make_session()
    session.conf.set("spark.dstreams.state.checksums", "maybe")
    with pytest.raises(InvalidStreamError, match=r"state\.checksums"):
        QueryRun(session, lambda words: words.dropDuplicates(), "append")
