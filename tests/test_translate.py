"""The script, from bytes to bytes."""

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from load_script import ROOT, load_script

from vaswani import VaswaniConfig, VaswaniForSeq2SeqLM, packing_vaswani, translation
from vaswani.cpu import computes_int8
from vaswani.engines import engine_in_processes
from vaswani.run_config import UserError
from vaswani.tokenization_vaswani import train_tokenizer

SENTENCES = ["The man reads a book.", "Two dogs run.", "It rains in the city.", "A house.", "He sees a big house."]
UGLY = (
    b"A house.\n\n\tTwo\tdogs\t.\nNUL\0here.\nbad \xff\xfe bytes.\r\n"
    + b"A dog runs. " * 4200
    + b"\n\xe2\x80\xa8\nlast line"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A random model that stops, and says different things of different sentences."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    tokenizer = train_tokenizer(SENTENCES * 3, 300)
    config = VaswaniConfig(vocab_size=len(tokenizer), d_model=32, d_ff=48, num_layers=1, num_heads=2)
    model = VaswaniForSeq2SeqLM(config)
    torch.nn.init.normal_(model.lm_head.weight, std=0.5)
    for layer in model.model.decoder.layers:
        layer.encoder_attn.out_proj.weight.data *= 20
    model.generation_config.update(max_length_offset=2, num_beams=2, length_penalty=0.6)
    for part in (model, tokenizer):
        part.save_pretrained(path)
    return str(path)


@pytest.fixture
def translate(capsysbinary, monkeypatch):
    """A function: exit code, standard output and standard error of the script."""
    script = load_script("translate")

    def call(*arguments, stdin: bytes = b""):
        out, err = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        code = script.main([str(argument) for argument in arguments])
        out.flush(), err.flush()
        return code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode()

    return call


def test_any_bytes_line_for_line(translate, model, tmp_path):
    code, out, err = translate(model, "--max_input_length", 40, stdin=UGLY)
    lines = out.split("\n")
    assert code == 0 and len(lines) == 8 + 1 and lines[-1] == "" and lines[1] == ""
    assert (
        "line 5: CRLF line ends, bad UTF-8: replace" in err
        and "line 6: " in err
        and "over max_input_length=40: truncate" in err
    )
    assert "8 lines in" in err and "sentences/s" in err
    (tmp_path / "ugly").write_bytes(UGLY)
    assert translate(model, tmp_path / "ugly", "--max_input_length", 40)[1] == out  # a file, in windows of its own
    assert translate(model, "--input", tmp_path / "ugly", "--max_input_length", 40, "--buffer", 1)[1] == out
    skipped = translate(model, "--max-input-length", 40, "--on_long", "skip", stdin=UGLY)[1].split("\n")
    assert skipped[5] == "" and skipped[:5] == lines[:5] and skipped[6:] == lines[6:]
    code, out, err = translate(model, "--on_bad_utf8", "error", stdin=UGLY)
    assert code == 2 and "line 5: byte 0xff" in err


def test_n_best(translate, model):
    best = translate(model, stdin="\n".join(SENTENCES).encode())[1].splitlines()
    out = translate(model, "--num_beams", 2, "--n_best", 2, stdin="\n".join(["", *SENTENCES]).encode())[1]
    rows = [line.split("\t") for line in out.splitlines()]
    assert rows[0] == ["1", "0.0000", ""] and all(len(row) == 3 for row in rows)
    for number, expected in enumerate(best, start=2):
        scores = [float(score) for n, score, _ in rows if int(n) == number]
        texts = [text for n, _, text in rows if int(n) == number]
        assert texts[0] == expected and scores == sorted(scores, reverse=True) and 1 <= len(scores) <= 2
    alone = translate(model, "--num_beams", 2, "--n_best", 1, stdin="\n".join(["", *SENTENCES]).encode())[1]
    best_rows = [next(row for row in rows if int(row[0]) == number) for number in range(1, len(SENTENCES) + 2)]
    assert [line.split("\t") for line in alone.splitlines()] == best_rows


def test_bfloat16(translate, model):
    code, out, _ = translate(model, "--dtype", "bfloat16", "--threads", 1, stdin="\n".join(SENTENCES).encode())
    assert code == 0 and len(out.splitlines()) == len(SENTENCES)


@pytest.mark.skipif(not computes_int8(), reason="this processor does not multiply 8-bit integers")
def test_int8_is_taken_and_does_nearly_the_same(translate, model, monkeypatch):
    monkeypatch.setattr(packing_vaswani, "SMALLEST", {torch.int8: 1})
    packed = []
    product = packing_vaswani.Int8Product.__init__
    monkeypatch.setattr(packing_vaswani.Int8Product, "__init__", lambda *a: packed.append(1) or product(*a))
    source = "\n".join(SENTENCES).encode()
    exact, rounded = (translate(model, "--dtype", dtype, "--n_best", 1, stdin=source) for dtype in ("float32", "int8"))
    assert exact[0] == rounded[0] == 0 and packed
    scores = [[float(line.split("\t")[1]) for line in out.splitlines()] for _, out, _ in (exact, rounded)]
    assert len(scores[0]) == len(SENTENCES) and scores[0] != scores[1]
    assert scores[1] == pytest.approx(scores[0], rel=0.1, abs=0.1)


def test_int8_where_it_cannot_be_had(translate, model, monkeypatch):
    monkeypatch.setattr(translation, "computes_int8", lambda: False)
    code, _, err = translate(model, "--dtype", "int8", stdin=b"A house.\n")
    assert code == 2 and "VNNI" in err and "choose float32" in err


def test_mistakes(translate, model, tmp_path):
    for arguments, sentence in (
        ([model, "--output", tmp_path / "out"], "--output needs an input file"),
        ([model, tmp_path / "none", "--output", tmp_path / "out"], "there is no file"),
        ([tmp_path / "none"], "there is no folder"),
        ([model, "--engine", "ctranslate2"], "CTranslate2"),
        ([model, "--engine", "ctranslate2", "--dtype", "bfloat16"], "--quantization"),
    ):
        code, out, err = translate(*arguments)
        assert code == 2 and out == "" and err.startswith("error: ") and sentence in err and err.count("\n") == 1
    (tmp_path / "in").write_text("A house.\n")
    (tmp_path / "out").write_text("precious\n")
    assert "exists already" in translate(model, tmp_path / "in", "--output", tmp_path / "out")[2]
    assert (tmp_path / "out").read_text() == "precious\n"


def test_killed_and_started_again(translate, model, tmp_path):
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("".join(f"{SENTENCES[i % 5]} {i}\n" for i in range(900)))
    expected = translate(model, source, "--num_beams", 1)[1]
    arguments = [model, str(source), "--output", str(output), "--buffer", "20", "--num_beams", "1"]
    command = [sys.executable, str(ROOT / "scripts" / "translate.py"), *arguments]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": str(ROOT)})
    record, deadline = tmp_path / "out.txt.partial.json", time.monotonic() + 120
    while not record.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert record.exists() and not output.exists()
    assert "another input, model or options" in translate(*arguments, "--max_input_length", 9)[2]
    code, out, err = translate(*arguments)
    assert code == 0 and out == "" and "continues" in err
    assert output.read_text(encoding="utf-8") == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]


def test_several_workers(translate, model, tmp_path):
    (tmp_path / "in.txt").write_text("".join(f"{SENTENCES[i % 5]} {i}\n\n" for i in range(30)))
    expected = translate(model, tmp_path / "in.txt")[1]
    shared = translate(model, tmp_path / "in.txt", "--workers", 3, "--buffer", 17)
    assert shared[0] == 0 and shared[1] == expected
    assert "there is no folder" in translate(tmp_path / "none", "--workers", 2)[2]
    for workers in (1, 2):  # the first has the empty line, which does not fail
        arguments = ("--workers", workers, "--num_beams", 2, "--n_best", 4)
        code, _, err = translate(model, *arguments, stdin=b"\nA house.\n")
        assert code == 2 and "num_return_sequences" in err and err.count("\n") == 1


def test_a_worker_that_dies_is_said(model):
    """And not taken for a reader of our output that has enough."""
    with engine_in_processes(2, model, "pytorch", "float32", None) as engine:
        (child,) = multiprocessing.active_children()
        child.kill()
        child.join()
        with pytest.raises(UserError, match="worker 2 has died"):
            engine.translate(SENTENCES)
    assert not multiprocessing.active_children()


def test_the_call_after_one_that_failed_has_its_own_answers(model):
    with engine_in_processes(2, model, "pytorch", "float32", 1) as engine:
        expected = engine.translate(SENTENCES)
        with pytest.raises(ValueError):
            engine.translate(["\ud800", "Two dogs run.", "A house."])  # the first is not text: it fails in this process
        assert engine.translate(SENTENCES) == expected


def test_workers_are_for_cpus(model, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UserError, match="here is a GPU"), engine_in_processes(2, model, "pytorch", "float32", None):
        pass


PARENT = """
import multiprocessing, os, signal, sys
from vaswani.engines import engine_in_processes
from vaswani.workers import tell

if __name__ == "__main__":
    with engine_in_processes(2, sys.argv[1], "pytorch", "float32", 1) as engine:
        (pipe,) = engine.pipes.values()
        tell("worker 2", pipe, (1, [f"A house {i}." for i in range(100_000)], {"max_tokens": 1}))  # hours
        print(multiprocessing.active_children()[0].pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_busy_workers_end_with_a_killed_parent(model, tmp_path):
    (tmp_path / "parent.py").write_text(PARENT)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, tmp_path / "parent.py", model], stdout=subprocess.PIPE, env=environment, check=False
    )
    assert done.returncode == -signal.SIGKILL
    child, deadline = int(done.stdout), time.monotonic() + 20
    while (alive := running(child)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive


@pytest.mark.parametrize(("name", "sentence"), [("stdin", "give a FILE"), ("stdout", "give --output FILE")])
def test_closed_standard_streams(model, capsys, monkeypatch, name, sentence):
    script = load_script("translate")
    monkeypatch.setattr(sys, name, None)  # what Python makes of one that is closed
    assert script.main([model]) == 2
    assert sentence in capsys.readouterr().err


def running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
