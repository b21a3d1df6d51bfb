"""Which run of a query writes to a directory: the newest one that follows from all before it.

::

    <directory>/_committed/run-0000000007       the run of the epoch 7, and where its checkpoint is

A checkpoint can be copied, and both of them run: they are one query by their ids, and each would
take the other's batches for its own. So a run leaves its name, and the next one goes on only if its
checkpoint knows that run. It deletes the name of the one before, which ends at its next batch.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass

from checkpoint import AlreadyExistsError, CheckpointError, Files
from dstreams.errors import RestartError
from dstreams.structured.sinks.base import Writer

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OutputClaim:
    """A run as writer of a directory.

    Args:
        files: the directory.
        prefix: of the names of runs.
        query_id: of the query.
        writer: the run.
    """

    files: Files
    prefix: str
    query_id: str
    writer: Writer

    def take(self, newest: int) -> None:
        """Take the directory over.

        Args:
            newest: the newest batch in it, -1 for none.

        Raises:
            RestartError: the run that has it went on from a copy of the checkpoint, or it has
                batches that this checkpoint has not begun.
        """
        names = self._names()
        if names:
            self._require_followed(names[-1])
        self._require_begun(newest)
        facts = {
            "queryId": self.query_id,
            "runId": self.writer.run_id,
            "epoch": self.writer.epoch,
            "location": self.writer.location,
        }
        try:
            self.files.create(self._name, [json.dumps(facts).encode()])
        except AlreadyExistsError:
            self._require_followed(self._name)
        for name in names:
            if name != self._name:
                self._delete(name)

    def check(self) -> None:
        """Return if this run still has the directory; costs a look for a file.

        Raises:
            RestartError: another one has taken it over.
        """
        if self.files.exists(self._name):
            return
        names = self._names()
        who = self._show(names[-1]) if names else "somebody who has deleted the name of this run"
        raise RestartError(f"{self.files.url} was taken over by {who}; {self._remedy()}")

    def require_own(self, batch_id: int, epoch: int, run_id: str) -> None:
        """Refuse a batch that this run cannot take for its own.

        Args:
            batch_id: number of the batch.
            epoch: of the run that wrote it.
            run_id: of that run.

        Raises:
            RestartError: it went on from a copy of the checkpoint.
        """
        writer = self.writer
        if run_id in ("", writer.run_id):
            return
        if batch_id > writer.newest_batch or not writer.follows(epoch, run_id):
            raise RestartError(
                f"batch {batch_id} of {self.files.url} was written by run {run_id} of epoch "
                f"{epoch}; {self._remedy()}"
            )

    @property
    def _name(self) -> str:
        return f"{self.prefix}{self.writer.epoch:010d}"

    def _names(self) -> list[str]:
        return [name for name in self.files.list(self.prefix) if name[-10:].isdecimal()]

    def _require_followed(self, name: str) -> None:
        facts = json.loads(self.files.read(name))
        if not self.writer.follows(facts["epoch"], facts["runId"]):
            raise RestartError(
                f"{self.files.url} is written by {self._show(name)}, from which this run does not "
                f"follow; {self._remedy()}"
            )

    def _require_begun(self, newest: int) -> None:
        if newest > self.writer.newest_batch:
            raise RestartError(
                f"{self.files.url} has batches of query {self.query_id} up to {newest}, its "
                f"checkpoint {self.writer.location} none after {self.writer.newest_batch}: that is "
                "an older copy, or was rewound, and would take batches for written that it has to "
                "write; go on with the newest checkpoint, or write to a new directory"
            )

    def _show(self, name: str) -> str:
        facts = json.loads(self.files.read(name))
        return (
            f"run {facts['runId']} of query {facts['queryId']}, epoch {facts['epoch']} of the "
            f"checkpoint {facts['location']}"
        )

    def _remedy(self) -> str:
        writer = self.writer
        return (
            f"this is run {writer.run_id}, epoch {writer.epoch} of {writer.location}: only one of "
            "a checkpoint and its copies can write to a directory; go on with that one, or let "
            "this one write to a directory of its own"
        )

    def _delete(self, name: str) -> None:
        try:
            self.files.delete(name)
        except CheckpointError as error:
            _log.warning("%s: the name of an older run is left: %s", self.files.url, error)
