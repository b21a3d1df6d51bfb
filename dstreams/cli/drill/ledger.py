"""The records that a drill feeds: each has an id of its own, and all follow from their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

FILE_RECORDS = 200
KEYS = 40

_SUFFIX = ".txt"


class Record(NamedTuple):
    """One line of input."""

    record_id: int
    key: str
    amount: int

    def to_line(self) -> str:
        """Return the line of a file."""
        return f"{self.record_id} {self.key} {self.amount}"


def parse_record(line: str) -> Record:
    """Return the record of a line."""
    record_id, key, amount = line.split(" ")
    return Record(int(record_id), key, int(amount))


def records_of_file(number: int) -> Iterator[Record]:
    """Yield the records of file *number*."""
    for record_id in range(number * FILE_RECORDS, (number + 1) * FILE_RECORDS):
        mixed = record_id * 2654435761 % 2**32
        # Few of the keys come in each file: state of the others has to be kept all the same.
        key = (mixed >> 7) % 8 + number % (KEYS - 8)
        yield Record(record_id, f"key-{key:02}", mixed % 97 + 1)


def write_file(directory: Path, number: int) -> None:
    """Put file *number* into the input directory, where it appears complete."""
    hidden = directory / f".records-{number:06}"
    hidden.write_text("".join(f"{record.to_line()}\n" for record in records_of_file(number)))
    hidden.rename(directory / input_file_name(number))


def input_file_name(number: int) -> str:
    """Return the name of file *number*."""
    return f"records-{number:06}{_SUFFIX}"


def files_written(directory: Path) -> list[int]:
    """Return the numbers of the files in the input directory, sorted."""
    return sorted(int(path.stem.rpartition("-")[2]) for path in directory.glob(f"*{_SUFFIX}"))


def records_in(numbers: Iterable[int]) -> dict[int, Record]:
    """Return the records of files by their ids."""
    return {record.record_id: record for number in numbers for record in records_of_file(number)}
