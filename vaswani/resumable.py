"""A text file written in whole chunks, which an interrupted command continues when it is run again."""

import hashlib
import json
import os
from pathlib import Path

from .run_config import UserError


class ResumableOutput:
    """Chunks go to `NAME.partial`; `NAME.partial.json` says how many inputs they answer and where the last one ends. What a
    killed process wrote behind that is cut off. `finish` renames the file: there is no NAME that is not whole.

    Args:
        path: the file to write; it must not exist.
        fingerprint: of all that the text is made from: `file_fingerprint` of the inputs, models and options.

    Raises:
        UserError: the file exists, or what is begun there was begun from something else.
    """

    def __init__(self, path: Path, fingerprint: str):
        self.path, self.fingerprint = path, fingerprint
        self.partial = path.with_name(path.name + ".partial")
        self.record = path.with_name(path.name + ".partial.json")
        if path.exists():
            raise UserError(f"{path} exists already: delete it, or choose another output")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.done = self._begun()  # inputs answered
        self.file = self.partial.open("ab")

    def _begun(self) -> int:
        if not self.record.exists():
            self.partial.unlink(missing_ok=True)  # begun, and no chunk finished
            return 0
        try:
            begun = json.loads(self.record.read_text(encoding="utf-8"))
            done, size, fingerprint = begun["inputs"], begun["bytes"], begun["fingerprint"]
            whole = self.partial.stat().st_size >= size
        except (OSError, ValueError, KeyError, TypeError):
            whole = False
        if not whole:
            raise UserError(f"{self.record} does not fit {self.partial}: delete both to start over")
        if fingerprint != self.fingerprint:
            raise UserError(
                f"{self.partial} was begun from another input, model or options: delete it and {self.record.name} "
                f"to start over, or choose another output"
            )
        os.truncate(self.partial, size)
        return done

    def write(self, text: str, inputs: int) -> None:
        """Adds the answers to the next `inputs` inputs."""
        self.file.write(text.encode("utf-8"))
        self.file.flush()
        self.done += inputs
        state = {"inputs": self.done, "bytes": self.file.tell(), "fingerprint": self.fingerprint}
        beside = self.record.with_name(self.record.name + ".new")
        beside.write_text(json.dumps(state), encoding="utf-8")
        os.replace(beside, self.record)

    def finish(self) -> None:
        self.file.close()
        os.replace(self.partial, self.path)
        self.record.unlink(missing_ok=True)


def file_fingerprint(*inputs: Path | str) -> str:
    """Of the content of files, and of strings."""
    digest = hashlib.sha256()
    for item in inputs:
        digest.update(b"\0" + (item if isinstance(item, str) else "file").encode())
        if isinstance(item, Path):
            with item.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()


__all__ = ["ResumableOutput", "file_fingerprint"]
