"""Lines of text on their way into translation: as they arrive, named where something is wrong, cut where too long."""

import queue
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator

NAMED = 10  # lines of a kind that are named; the rest are counted


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def named(lines: Iterable[str | None], counts: Counter) -> Iterator[str]:
    """Passes lines on, empty for None and without NUL characters, as in training, and names those that are faulty."""
    before = Counter()
    for number, line in enumerate(lines, start=1):
        if line and "\0" in line:
            counts["NUL characters removed"] += 1
            line = line.replace("\0", "")
        if counts != before:
            if counts.total() <= NAMED:
                note(f"line {number:,}: {', '.join(counts - before)}")
            before = Counter(counts)
        yield line or ""


def as_they_arrive(lines: Iterable[str], most: int) -> Iterator[list[str]]:
    """What has come in, up to `most` lines at a time: one line to whoever types, many where a file is piped in."""
    arrived: queue.Queue = queue.Queue(maxsize=most)

    def read() -> None:
        try:
            for line in lines:
                arrived.put((line, None))
            arrived.put((None, None))
        except BaseException as error:
            arrived.put((None, error))

    threading.Thread(target=read, daemon=True).start()
    while True:
        window = [arrived.get()]
        while len(window) < most and window[-1][0] is not None and not arrived.empty():
            window.append(arrived.get())
        last, error = window[-1]
        if text := [line for line, _ in window if line is not None]:
            yield text
        if error:
            raise error
        if last is None:
            return


def cut_to_length(lines: list[str], tokenizer, limit: int, on_long: str, first: int, counts: Counter) -> list[str]:
    """Lines of more than `limit` tokens, EOS counted, cut behind what fits, or emptied (`on_long="skip"`)."""
    result = list(lines)
    for i, line in enumerate(lines):
        if len(line.encode()) < limit:  # no more tokens than bytes
            continue
        encoded = tokenizer(line, return_offsets_mapping=True)
        length = len(encoded["input_ids"])
        if length <= limit:
            continue
        counts[f"over {limit:,} tokens: {on_long}"] += 1
        if counts[f"over {limit:,} tokens: {on_long}"] <= NAMED:
            note(f"line {first + i:,}: {length:,} tokens, over max_input_length={limit:,}: {on_long}")
        end = encoded["offset_mapping"][limit - 1][0]
        result[i] = "" if on_long == "skip" else line[:end]
    return result


__all__ = ["as_they_arrive", "cut_to_length", "named", "note"]
