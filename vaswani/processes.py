"""The processes that train together: one acts for all, all stop at the same step, and none waits for a dead one."""

import datetime
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import distributed

from .run_config import UserError

T = TypeVar("T")
LOST = re.compile(r"connection (closed|reset|refused)|broken pipe|timed? ?out|gloo|nccl", re.IGNORECASE)


class Team:
    """This process among those that train together. One that is alone is a team too, and never waits.

    What is exchanged here goes through the CPU, so that the device is not waited for.

    Args:
        accelerator: an `accelerate.Accelerator`, which has made the processes known to each other.
        timeout: seconds to wait for another process before it counts as lost; `local_first` waits twelve hours.
    """

    def __init__(self, accelerator, timeout: float):
        self.rank, self.world = accelerator.process_index, accelerator.num_processes
        self.main, self.local_main = self.rank == 0, accelerator.is_local_main_process
        self.group = self.patient = None
        if self.world > 1:
            self.group = distributed.new_group(backend="gloo", timeout=datetime.timedelta(seconds=timeout))
            self.patient = distributed.new_group(backend="gloo", timeout=datetime.timedelta(hours=12))

    def gather(self, value: Any, group=None) -> list:
        """What every process has, in the order of their ranks."""
        values = [value] * self.world
        if self.world > 1:
            distributed.all_gather_object(values, value, group=group or self.group)
        return values

    def largest(self, number: int) -> int:
        if self.world == 1:
            return number
        found = torch.tensor(number)
        distributed.all_reduce(found, distributed.ReduceOp.MAX, group=self.group)
        return int(found)

    def main_only(self, work: Callable[[], T]) -> T:
        """Does the work on the main process and returns its result on every one."""
        return self._turn(work, self.main, self.group)[0]

    def local_first(self, work: Callable[[], T]) -> T:
        """Does the work on every process, on the first of each machine before the others, which find it done."""
        first = self._turn(work, self.local_main, self.patient)
        others = self._turn(work, not self.local_main, self.patient)
        return (first if self.local_main else others)[self.rank]

    def _turn(self, work: Callable[[], T], mine: bool, group) -> list[T | None]:
        """Each process's result. If the work fails on one, all end: the first that failed says why."""
        result = error = None
        if mine:
            try:
                result = work()
            except (UserError, OSError) as failure:
                error = failure
        outcomes = self.gather((result, error is not None), group)
        failed = [rank for rank, (_, has_failed) in enumerate(outcomes) if has_failed]
        if failed:
            raise error if self.rank == failed[0] else SystemExit(2)
        return [result for result, _ in outcomes]


@contextmanager
def others_must_answer() -> Iterator[None]:
    """What gloo and NCCL say of a process that died or hangs becomes a sentence for the user."""
    try:
        yield
    except RuntimeError as error:
        if not (distributed.is_initialized() and LOST.search(str(error))):
            raise
        reason = " ".join(str(error).split())[:160]
        raise UserError(
            f"another process has died or does not answer ({reason}): see what it said last; checkpoints up to here are "
            f"kept, and the same command continues from the newest"
        ) from None


class StopRequest:
    """Notes a wish to stop, for the training loop to see at the end of a step: `signal` is its number, 0 for none.

    SIGTERM, SIGINT and SIGUSR1 (which SLURM can send ahead of its time limit) count, and so does the end of the launcher:
    `accelerate launch` with one process dies of SIGTERM without telling the process that it started. A second Ctrl-C,
    more than two seconds after the first (a launcher repeats it at once), interrupts as usual.

    Args:
        parent: process id of the launcher, as known when this process began.
        speak: whether to say on standard error what happens next.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else []))

    def __init__(self, parent: int, speak: bool = True):
        launched = any(name.startswith(("ACCELERATE_", "TORCHELASTIC_")) for name in os.environ)
        self.parent, self.speak = parent if launched else None, speak
        self.first, self.since = 0, 0.0

    def __enter__(self) -> "StopRequest":
        self.before = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame) -> None:
        if not self.first:
            self.first, self.since = number, time.monotonic()
            if self.speak:  # not print: it may be what the signal interrupted
                os.write(2, f"\n{signal.Signals(number).name}: saving at the end of this step\n".encode())
        elif number == signal.SIGINT and time.monotonic() - self.since > 2:
            raise KeyboardInterrupt

    @property
    def signal(self) -> int:
        if not self.first and self.parent is not None and os.getppid() != self.parent:
            self._note(signal.SIGTERM, None)
        return self.first
