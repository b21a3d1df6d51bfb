"""Where a receiver runs: in the driver, or on an executor, in a Spark job that does not end."""

from __future__ import annotations

import logging
import socket
import threading
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark import InheritableThread, SparkContext, cloudpickle

from dstreams.clock import Clock
from dstreams.rdd.failures import summarize
from dstreams.receiving.blocks import BlockStore
from dstreams.receiving.cores import give_core, is_local, is_on_this_machine, take_core
from dstreams.receiving.endpoint import BlockEndpoint
from dstreams.receiving.executor import RunReceiver
from dstreams.receiving.protocol import new_token
from dstreams.receiving.supervisor import (
    Notice,
    ReceiverSupervisor,
    ReceivingSettings,
    Report,
    UserReceiver,
    error_text,
)

logger = logging.getLogger(__name__)

_CANCEL_TRIES = 25
_CANCEL_PAUSE_S = 0.2


@dataclass(frozen=True)
class Place:
    """Where a receiver runs.

    Args:
        host: name of the machine.
        executor_id: executor, ``driver`` in the driver, empty while it is unknown.
    """

    host: str
    executor_id: str


class ReceiverHost(Protocol):
    """A receiver that was brought to where it runs."""

    @property
    def place(self) -> Place: ...

    def start(self) -> None: ...

    def request_stop(self) -> None: ...

    def wait(self, timeout_s: float) -> bool: ...

    def abandon(self) -> None: ...

    def update_rate(self, rate: float) -> None: ...


class DriverHost:
    """Runs a receiver in this process; it takes no core of Spark.

    Args:
        receiver: the receiver.
        name: its name.
        store: takes its blocks.
        report: told what becomes of it.
        clock: the driver's clock.
        settings: settings.
    """

    def __init__(
        self,
        receiver: UserReceiver,
        name: str,
        store: BlockStore,
        report: Report,
        clock: Clock,
        settings: ReceivingSettings,
    ) -> None:
        self._supervisor = ReceiverSupervisor(receiver, name, store, report, clock, settings)

    @property
    def place(self) -> Place:
        """This machine."""
        return Place(socket.gethostname(), "driver")

    def start(self) -> None:
        """Start the receiver."""
        self._supervisor.start()

    def request_stop(self) -> None:
        """Ask it to stop, and to store what it has; returns at once."""
        self._supervisor.stop("stopped by the driver")

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended and stored all; say whether it has."""
        return self._supervisor.wait(timeout_s)

    def abandon(self) -> None:
        """Wait for it no more."""
        self._supervisor.abandon()

    def update_rate(self, rate: float) -> None:
        """Set its rate in records a second."""
        self._supervisor.update_rate(rate)


class ExecutorHost:
    """Runs a receiver on an executor: a job of one task, run again whenever it ends by accident.

    The receiver is pickled once, and each task begins with that copy. Its blocks come back over a
    connection of its own: Spark hands out the result of a task only when the task has ended.

    Args:
        receiver: the receiver.
        name: its name.
        store: takes its blocks, in the driver.
        report: told what becomes of it.
        spark: the context.
        settings: settings.
    """

    def __init__(
        self,
        receiver: UserReceiver,
        name: str,
        store: BlockStore,
        report: Report,
        spark: SparkContext,
        settings: ReceivingSettings,
    ) -> None:
        self._receiver = receiver
        self._name = name
        self._report = report
        self._spark = spark
        self._settings = settings
        self._token = new_token()
        self._group = f"dstreams-receiver-{self._token[:8].hex()}"
        bind, self._host = _addresses(spark)
        self._endpoint = BlockEndpoint(
            name, bind, self._token, store, connected=self._note_place, notice=self._note
        )
        self._place = Place("", "")
        self._stopping = threading.Event()
        self._is_over = threading.Event()
        self._ended = threading.Event()
        self._has_core = False
        self._thread: threading.Thread | None = None

    @property
    def place(self) -> Place:
        """Where the receiver said that it is; empty before."""
        return self._place

    def start(self) -> None:
        """Start the job.

        Raises:
            InvalidStreamError: it would leave no core for batches.
        """
        take_core(self._spark, self._name)
        self._has_core = True
        logger.info(
            "%s: runs as a task on an executor and takes one core, for as long as the stream runs",
            self._name,
        )
        pickled = cloudpickle.dumps(self._receiver)
        port = self._endpoint.start()
        task = RunReceiver(pickled, self._name, self._host, port, self._token, self._settings)
        # Inheriting the local properties of who starts the stream, as the batches do.
        self._thread = InheritableThread(
            target=self._run, args=(task,), name=f"{self._name} job", daemon=True
        )
        self._thread.start()

    def request_stop(self) -> None:
        """Ask it to stop, and to store what it has; returns at once."""
        self._stopping.set()
        if self._thread is None:
            self._ended.set()
        elif self._endpoint.is_connected():
            self._endpoint.stop_receiver()
        else:
            self._endpoint.stop_receiver()
            self._cancel()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended and stored all; say whether it has."""
        return self._ended.wait(timeout_s)

    def abandon(self) -> None:
        """End its job, whatever it does. May come twice."""
        self._stopping.set()
        self._endpoint.close()
        for _ in range(_CANCEL_TRIES):
            if self._thread is None or self._ended.is_set() or not self._cancel():
                break
            # More than once: the job may just be about to begin.
            self._ended.wait(_CANCEL_PAUSE_S)
        if self._has_core:
            self._has_core = False
            give_core(self._spark)

    def update_rate(self, rate: float) -> None:
        """Set its rate in records a second."""
        self._endpoint.update_rate(rate)

    def _run(self, task: RunReceiver) -> None:
        try:
            while not self._stopping.is_set():
                failure = self._run_job(task)
                if self._stopping.is_set() or self._is_over.is_set():
                    break
                reason = "ended" if failure is None else f"failed: {summarize(failure)}"
                message = (
                    f"its task {reason}; starting again in {self._settings.restart_delay_ms} ms"
                )
                logger.warning("%s: %s", self._name, message)
                self._report(Notice("error", message, error_text(failure)))
                self._stopping.wait(self._settings.restart_delay_ms / 1000)
        finally:
            self._ended.set()

    def _run_job(self, task: RunReceiver) -> Exception | None:
        """Run one job to its end, and return what it failed with."""
        try:
            description = f"receiver of {self._name}"
            self._spark.setJobGroup(self._group, description, interruptOnCancel=True)
            self._spark.parallelize([0], 1).mapPartitions(task).collect()
        except Exception as error:
            return error
        return None

    def _cancel(self) -> bool:
        try:
            self._spark.cancelJobGroup(self._group)
        except Exception:
            logger.debug("%s: could not be cancelled; is Spark gone?", self._name)
            return False
        return True

    def _note(self, notice: Notice) -> None:
        if notice.kind == "stopped":
            self._is_over.set()
        self._report(notice)

    def _note_place(self, fields: dict[str, Any]) -> None:
        executor_id = "driver"
        if not is_local(self._spark):
            executor_id = _executor_of(self._spark, fields.get("stage"), fields.get("task"))
        self._place = Place(str(fields.get("host", "")), executor_id)


def _executor_of(spark: SparkContext, stage: object, task: object) -> str:
    """The executor that runs a task, empty when Spark does not say: it is told to people only."""
    try:
        store: Any = spark._jsc.sc().statusStore()
        tasks = store.taskList(stage, store.lastStageAttempt(stage).attemptId(), 100)
        found = (tasks.apply(index) for index in range(tasks.size()))
        return next((str(each.executorId()) for each in found if each.taskId() == task), "")
    except Exception:
        logger.debug("the executor of task %s is not known", task, exc_info=True)
        return ""


def _addresses(spark: SparkContext) -> tuple[str, str]:
    """The address to listen at, and the one by which executors reach it."""
    if is_on_this_machine(spark):
        return "127.0.0.1", "127.0.0.1"
    conf = spark.getConf()
    host = conf.get("spark.driver.host") or socket.gethostname()
    return conf.get("spark.driver.bindAddress") or host, host
