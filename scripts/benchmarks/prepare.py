"""Preparing a corpus end to end, at several sizes: pairs a second, memory of all processes, and what WMT14 would take."""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from vaswani.run_config import UserError, positive
from vaswani.text_lines import read_lines, write_lines
from vaswani.wmt import RECIPES

CLEANING = {"max_words": 175, "max_ratio": 1.5, "drop_identical": True, "drop_duplicates": True, "min_script": 0.5}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--source", type=Path, nargs="+", required=True, help="text, one file or several in turn")
    parser.add_argument("--target", type=Path, nargs="+", required=True, help="its translation")
    parser.add_argument("--languages", nargs=2, default=["en", "fr"])
    parser.add_argument("--pairs", type=positive, nargs="+", default=[250_000, 500_000, 1_000_000])
    parser.add_argument("--vocab_size", type=positive, default=32_000)


def run(options: argparse.Namespace) -> None:
    script, results = Path(__file__).parents[1] / "prepare_data.py", []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for pairs in options.pairs:
            sides = zip(options.languages, (options.source, options.target), strict=True)
            for language, files in sides:
                lines = itertools.chain.from_iterable(map(read_lines, files))
                path = folder / f"train{pairs}.{language}"
                write_lines(path, itertools.islice(lines, pairs))
                if path.read_bytes().count(b"\n") < pairs:
                    raise UserError(f"{', '.join(map(str, files))} have fewer than {pairs:,} lines: lower --pairs")
                write_lines(folder / f"valid.{language}", itertools.islice(read_lines(files[0]), 1000))
            settings = {"data_dir": name, "train_files": [f"train{pairs}"], "valid_files": ["valid"], **CLEANING}
            settings |= dict(zip(("source_lang", "target_lang"), options.languages, strict=True))
            settings |= {"test_files": ["valid"], "vocab_size": options.vocab_size, "prepared_dir": str(folder / "out")}
            (folder / "config.yaml").write_text(json.dumps(settings), encoding="utf-8")
            results.append({"pairs": pairs, **measured([sys.executable, str(script), str(folder / "config.yaml")])})
            last = results[-1]
            last["pairs_per_second"] = round(pairs / last["seconds"])
            print(
                f"{pairs:,} pairs: {last['seconds']:.0f} s, {last['pairs_per_second']:,} pairs/s, {last['peak_gb']} GB"
            )
    slowest = min(result["pairs_per_second"] for result in results)
    for name in ("wmt14_en_de", "wmt14_en_fr"):
        pairs = sum(corpus.lines[RECIPES[name].lang] for corpus in RECIPES[name].train)
        print(f"{name}, {pairs:,} pairs before cleaning: {pairs / slowest / 3600:.1f} hours (extrapolated)")
    print(json.dumps(results))


def measured(command: list[str]) -> dict[str, float]:
    """Seconds, and the most memory that the process and its children had at once (pages shared by them counted once)."""
    start, peak = time.perf_counter(), 0
    process = psutil.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        memory = 0
        for member in [process, *process.children(recursive=True)]:
            try:
                memory += member.memory_full_info().pss
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        peak = max(peak, memory)
        time.sleep(0.1)
    if process.returncode:
        raise UserError(f"{' '.join(command)} failed: see above")
    return {"seconds": round(time.perf_counter() - start, 1), "peak_gb": round(peak / 2**30, 2)}
