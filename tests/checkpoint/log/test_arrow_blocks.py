"""Arrow blocks as tools see them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from checkpoint.cli.plain import Unshown, pairs_of
from checkpoint.log.block_formats import (
    arrow_metadata,
    arrow_pairs,
    arrow_side,
    is_arrow_block,
    write_arrow,
)

pa = pytest.importorskip("pyarrow", reason="pip install 'dstreams[arrow]'")


def payload_of(side: str, keys: tuple[str, ...], **columns: Any) -> bytes:
    block = pa.record_batch(columns).replace_schema_metadata(arrow_metadata(side, keys))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, block.schema) as writer:
        writer.write_batch(block)
    data: bytes = sink.getvalue().to_pybytes()
    return data


ONE = payload_of("STATE", ("word",), word=["a", None], total=[1, 2])
TWO = payload_of("STATE", ("word", "day"), word=["a"], day=[3], total=[1])
SAID = payload_of("OUTPUT", (), word=["a"])


def test_keys_and_states() -> None:
    """A key of one column is its value, one of several a tuple; what was said is no state."""
    assert list(arrow_pairs(ONE)) == [("a", {"total": 1}), (None, {"total": 2})]
    assert list(arrow_pairs(TWO)) == [(("a", 3), {"total": 1})]
    assert list(arrow_pairs(SAID)) == []
    assert list(pairs_of(ONE, repr)) == list(arrow_pairs(ONE))
    assert not is_arrow_block(b"\x01\x00")
    assert arrow_side(None) is None


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said what to install, in the place of what is not shown."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    [(shown, _)] = pairs_of(ONE, repr)
    assert isinstance(shown, Unshown)
    assert "pyarrow cannot be imported here" in shown.reason
    assert "pip install 'dstreams[arrow]'" in shown.reason


def test_a_file_of_arrow(tmp_path: Path) -> None:
    """All blocks of the state, and nothing else, go into a file that others read."""
    path = str(tmp_path / "state.arrow")
    assert write_arrow([ONE, SAID, ONE], path) == 4
    with pa.OSFile(path) as file, pa.ipc.open_file(file) as reader:
        assert reader.read_all().column("total").to_pylist() == [1, 2, 1, 2]
    with pytest.raises(FileExistsError):
        write_arrow([ONE], path)
    with pytest.raises(ValueError, match="the state is in pairs"):
        write_arrow([b"\x01\x00"], str(tmp_path / "other"))
    with pytest.raises(ValueError, match="the state has no key"):
        write_arrow([SAID], str(tmp_path / "other"))
