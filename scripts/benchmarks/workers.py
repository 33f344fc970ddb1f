"""Implementations that are measured in turns, each in a process of its own."""

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator

from vaswani.run_config import UserError


@contextlib.contextmanager
def worker(target: Callable, name: str, *given) -> Iterator:
    """The pipe to a process that runs `target(pipe, name, *given)`, which sends a message when it is ready. It ends when
    the pipe is closed.

    Raises:
        UserError: it has died before.
    """
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, name, *given), daemon=True)
    process.start()
    theirs.close()
    try:
        answer(name, pipe)
        yield pipe
    finally:
        pipe.close()
        process.join()


def answer(name: str, pipe, message=None):
    """What the worker says, to a message if one is given.

    Raises:
        UserError: it has died.
    """
    try:
        if message is not None:
            pipe.send(message)
        return pipe.recv()
    except (EOFError, OSError):
        raise UserError(f"the process of {name} has died: see its message above") from None
