"""Engines of translation by name, in one process or in several that share the sentences."""

import multiprocessing
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import torch
from transformers.utils import logging

from .run_config import UserError
from .translation import PyTorchEngine
from .workers import answer, tell, worker


def load_engine(model: str, kind: str = "pytorch", dtype: str = "float32", threads: int | None = None):
    """PyTorchEngine, or CTranslate2Engine of an exported folder; `dtype` is PyTorch's. Raises UserError as they do."""
    if kind == "ctranslate2":
        from .ctranslate2_export import CTranslate2Engine

        return CTranslate2Engine(model, threads=threads)
    if threads:
        torch.set_num_threads(threads)
    return PyTorchEngine(model, dtype=dtype)


@contextmanager
def engine_in_processes(workers: int, model: str, kind: str, dtype: str, threads: int | None) -> Iterator:
    """`load_engine` in so many processes, which share the sentences: a small model uses several cores better so than by
    several threads.

    Args:
        workers: processes, this one counted. Each holds the model.
        threads: of each; default: the CPU cores are shared out.

    Raises:
        UserError: there is no such model, several processes would share a GPU, or one of them has died.
    """
    if workers > 1:
        if torch.cuda.is_available():
            raise UserError("--workers shares the cores of a CPU out, and here is a GPU: leave it out")
        threads = threads or max(1, torch.get_num_threads() // workers)
    engine = load_engine(model, kind, dtype, threads)
    if workers == 1:
        yield engine
        return
    with ExitStack() as stack:
        names = [f"worker {number}" for number in range(2, workers + 1)]
        pipes = {name: stack.enter_context(worker(_serve, name, (model, kind, dtype, threads))) for name in names}
        for name, pipe in pipes.items():
            answer(name, pipe)  # it is ready
        yield SharedEngine(engine, pipes)


def _serve(pipe, name: str, engine: tuple) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    logging.disable_progress_bar()
    engine = load_engine(*engine)
    with suppress(EOFError, ConnectionError):  # the first process is gone
        pipe.send("ready")
        while True:
            call, sentences, options = pipe.recv()
            try:
                found = engine.translate(sentences, **options)
            except ValueError as error:  # raised there
                found = error
            pipe.send((call, found))


def _end_with_parent() -> None:
    """At once, and not behind the sentences that nobody waits for any more."""
    multiprocessing.parent_process().join()
    os._exit(1)


class SharedEngine:
    """An engine here and others at the ends of pipes: each translates its share of the sentences, of all lengths alike."""

    def __init__(self, engine, pipes: dict):
        self.engine, self.pipes, self.calls = engine, pipes, 0
        self.tokenizer, self.positions = engine.tokenizer, engine.positions

    def translate(self, sentences: Sequence[str], **options) -> list[list[tuple[str, float]]]:
        self.calls += 1
        by_length = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
        shares = [by_length[first :: 1 + len(self.pipes)] for first in range(1 + len(self.pipes))]
        parts = [[sentences[i] for i in share] for share in shares]
        for (name, pipe), part in zip(self.pipes.items(), parts[1:], strict=True):
            tell(name, pipe, (self.calls, part, options))
        found = [self.engine.translate(parts[0], **options)]
        found += [self._answer(name, pipe) for name, pipe in self.pipes.items()]
        for translations in found:
            if isinstance(translations, ValueError):
                raise translations
        results: list = [None] * len(sentences)
        for share, translations in zip(shares, found, strict=True):
            for i, translation in zip(share, translations, strict=True):
                results[i] = translation
        return results

    def _answer(self, name: str, pipe):
        """To the last call: one before it may have ended by an error here, with its answers still in the pipes."""
        while True:
            call, found = answer(name, pipe)
            if call == self.calls:
                return found


__all__ = ["engine_in_processes"]
