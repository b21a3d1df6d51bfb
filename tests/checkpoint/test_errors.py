"""Errors contain a remedy, and survive the way from a worker to the driver."""

from __future__ import annotations

import pickle

import pytest

from checkpoint import errors

CASES = [
    errors.StorageRefusedError("cannot write /x: no space; free space"),
    errors.AlreadyExistsError("/x exists already"),
    errors.StorageUncertainError("cannot link /x"),
    errors.NotDurableError("cannot sync the directory of /x"),
    errors.CorruptCheckpointError(
        "/x", "ends after 3 bytes", "20 bytes", "restore it", errors.Damage.DAMAGED
    ),
    errors.ConcurrentWriterError("another driver", 3, 4),
]


@pytest.mark.parametrize("error", CASES, ids=lambda error: type(error).__name__)
def test_errors_pickle_with_their_attributes(error: errors.CheckpointError) -> None:
    """An error of a task arrives on the driver with its message and attributes."""
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__


@pytest.mark.parametrize("error", CASES, ids=lambda error: type(error).__name__)
def test_all_errors_have_one_base(error: errors.CheckpointError) -> None:
    """All errors of checkpoint can be caught with one base class."""
    assert isinstance(error, errors.CheckpointError)


def test_kinds_tell_whether_it_happened() -> None:
    """No error is both refused (did not happen) and uncertain (may have)."""
    refused = (errors.StorageRefusedError, errors.AlreadyExistsError)
    uncertain = (errors.StorageUncertainError, errors.NotDurableError)
    assert all(issubclass(kind, errors.StorageRefusedError) for kind in refused)
    assert all(issubclass(kind, errors.StorageUncertainError) for kind in uncertain)
    assert not any(issubclass(kind, errors.StorageRefusedError) for kind in uncertain)


def test_a_corrupt_checkpoint_names_file_finding_expectation_and_remedy() -> None:
    """The message has the four facts that an operator needs."""
    error = errors.CorruptCheckpointError(
        "/c/f", "ends early", "20 bytes", "restore it", errors.Damage.DAMAGED
    )
    assert str(error) == "/c/f ends early; expected 20 bytes; restore it"
