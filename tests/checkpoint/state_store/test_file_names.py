"""References: names of contents, and of the files that hold them."""

from __future__ import annotations

import pytest

from checkpoint.log.version_records import EMPTY, StoreId, VersionId
from checkpoint.state_store.store_files import (
    StoredKind,
    directory_of,
    epoch_of,
    file_name,
    new_uid,
    parse_file_name,
)

STORE = StoreId("stream-1", "Counts per user", "default", 3, 8)


def test_a_uid_is_new_and_tells_its_epoch() -> None:
    """No two attempts have one uid, whatever their epoch."""
    uids = {new_uid(epoch) for epoch in (0, 7, 7, 16**8 - 1)}
    assert len(uids) == 4
    assert sorted(epoch_of(uid) or 0 for uid in uids) == [0, 7, 7, 16**8 - 1]
    assert epoch_of("0123456789abcdef") is None


@pytest.mark.parametrize("epoch", [-1, 16**8])
def test_an_epoch_that_no_uid_can_tell_is_refused(epoch: int) -> None:
    """The message says which epochs there are."""
    with pytest.raises(ValueError, match="must be 0 to 4294967295"):
        new_uid(epoch)


@pytest.mark.parametrize("kind", StoredKind)
def test_a_name_follows_from_the_version_and_back(kind: StoredKind) -> None:
    """A listing tells which content each file holds."""
    version_id = VersionId(12, new_uid(1))
    name = file_name(STORE, version_id, kind)
    assert name.startswith(directory_of(STORE))
    assert parse_file_name(name) == (directory_of(STORE), version_id, kind)


@pytest.mark.parametrize(
    "name",
    [
        "state/counts/0000000000001000-p00000-e1-ab.state",
        "stores/a/b/p00000/0000000000000001-zz.changes",
        "stores/a/b/p00000/0000000000000000-0123456789abcdef01234567.changes",
        "stores/a/b/p00000/0000000000000001-0123456789abcdef01234567.changes.tmp",
        "stores/a/b/0000000000000001-0123456789abcdef01234567.changes",
    ],
)
def test_other_names_are_no_files_of_stores(name: str) -> None:
    """What somebody else put there is never taken for a file of ours."""
    assert parse_file_name(name) is None


@pytest.mark.parametrize(
    ("version", "uid"), [(-1, ""), (0, "0" * 24), (1, ""), (1, "XYZ"), (1, "a/b")]
)
def test_impossible_versions_are_refused(version: int, uid: str) -> None:
    """Version 0 has no uid, every other one has."""
    with pytest.raises(ValueError, match="version"):
        VersionId(version, uid)
    assert VersionId(0, "") == EMPTY
