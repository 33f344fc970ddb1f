"""Processes of their own for parts of one work, or for implementations that take turns."""

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator

from .run_config import UserError


@contextlib.contextmanager
def worker(target: Callable, name: str, *given) -> Iterator:
    """The pipe to a new process that runs `target(pipe, name, *given)`. At the end of the block, and where this process
    is killed, its next `recv` or `send` raises EOFError or ConnectionError; after an error it is ended at once. Ctrl-C does
    not reach it."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, name, *given), daemon=True)
    ours = signal.signal(signal.SIGINT, signal.SIG_IGN)  # is inherited: this process ends the other
    process.start()
    signal.signal(signal.SIGINT, ours)
    theirs.close()
    try:
        yield pipe
    except BaseException:
        process.terminate()  # its work is not wanted any more
        raise
    finally:
        pipe.close()
        process.join()


@contextlib.contextmanager
def _alive(name: str) -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError):
        reason = "see its message above; without one, memory may have run out"
        raise UserError(f"the process of {name} has died: {reason}") from None


def tell(name: str, pipe, message) -> None:
    """Raises UserError where the worker has died."""
    with _alive(name):
        pipe.send(message)


def answer(name: str, pipe, message=None):
    """What the worker says, to a message if one is given. Raises UserError where it has died."""
    if message is not None:
        tell(name, pipe, message)
    with _alive(name):
        return pipe.recv()


__all__ = ["answer", "tell", "worker"]
