"""Names stay below the root and mean one file on every file system."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.storage import names
from checkpoint.storage.names import is_name, require_name, require_prefix, uid_part

GOOD = ["a", "state/counts/0001-p0.state", "A_b=c-d.e", "0", "_", "a" * 200]
BAD = ["", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/./b", ".a", "a/.b", "~", "-a"]
ODD = ["a b", "a\n", "\na", "a\x00", "a\\b", "C:a", "ü", "a*", "a" * 201, "a\u202eb"]


@pytest.mark.parametrize("name", GOOD)
def test_good_names_are_taken_as_they_are(name: str) -> None:
    """A good name is returned unchanged."""
    assert require_name(name) == name


@pytest.mark.parametrize("name", BAD + ODD)
def test_bad_names_are_refused_with_the_rule(name: str) -> None:
    """A name that is empty, absolute, leaves the root, is hidden or odd is refused."""
    assert not is_name(name)
    with pytest.raises(ValueError, match="must be parts joined by '/'"):
        require_name(name)


@pytest.mark.parametrize("prefix", ["", "a", "a/", "a/b"])
def test_prefixes_may_end_in_a_slash(prefix: str) -> None:
    """A prefix is a name, a directory, or nothing."""
    assert require_prefix(prefix) == prefix


@pytest.mark.parametrize("prefix", ["/", "../", "a//", ".", "a/.", " "])
def test_bad_prefixes_are_refused(prefix: str) -> None:
    """A prefix that no name can have is an error, not an empty listing."""
    with pytest.raises(ValueError, match="prefix"):
        require_prefix(prefix)


UIDS = ["a", "A", "a.b", "a/b", "a-b", "..", "/", " ", "ä", "Ä", "emoji\N{BUG}", "x" * 300]


def test_uids_that_differ_have_parts_that_differ_also_in_lower_case() -> None:
    """Odd, long and upper-case uids get parts of their own, on case-insensitive disks too."""
    parts = [uid_part(uid) for uid in UIDS]
    assert len({part.lower() for part in parts}) == len(UIDS)
    assert all(is_name(part) and "/" not in part for part in parts)


@given(st.text(min_size=1), st.text(min_size=1))
def test_uid_parts_are_names_and_equal_only_for_equal_uids(one: str, other: str) -> None:
    """Any text is a uid, and no two share a part."""
    assert is_name(uid_part(one))
    assert len(uid_part(one)) <= 80
    assert (uid_part(one) == uid_part(other)) == (one == other)


def test_no_uid_can_take_the_part_of_another() -> None:
    """The part of an odd uid, used as a uid, gets another part."""
    part = uid_part("Counts")
    assert uid_part(part) != part


def test_examples() -> None:
    """The docstring's example is right."""
    assert doctest.testmod(names).failed == 0
