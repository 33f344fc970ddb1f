import argparse
import contextlib
import gc
import json

import pytest
from load_script import load_script

from vaswani.cpu import computes_int8
from vaswani.run_config import UserError
from vaswani.tokenization_vaswani import train_tokenizer
from vaswani.workers import answer, worker

SMALL = ["--sentences", "4", "--batch_sizes", "1", "2", "--rounds", "1", "--num_beams", "2", "--json"]


def test_data_ends_with_one_json_line(capsys):
    assert load_script("benchmark").main(["data", "--pairs", "200000", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    wanted = {"plan_seconds", "peak_rss_gb", "padding_source", "padding_target", "resume_seconds"}
    assert wanted <= figures.keys() and figures["pairs"] == 200_000
    assert 0 < figures["padding_source"] < 0.1 and 0 < figures["padding_target"] < 0.1


def test_prepare_measures_what_it_is_given(capsys, tmp_path):
    for side in ("en", "fr"):
        (tmp_path / side).write_text("".join(f"{side} sentence number {i}\n" for i in range(1200)))
    command = ["prepare", "--source", str(tmp_path / "en"), "--target", str(tmp_path / "fr"), "--vocab_size", "300"]
    assert load_script("benchmark").main([*command, "--pairs", "2000"]) == 2
    assert "have fewer than 2,000 lines" in capsys.readouterr().err
    assert load_script("benchmark").main([*command, "--pairs", "1200"]) == 0
    (figures,) = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["pairs"] == 1200 and figures["seconds"] > 0 and 0.1 < figures["peak_gb"] < 8


@pytest.fixture
def benchmark(capsys):
    def call(*arguments):
        code = load_script("benchmark").main(["decode", *map(str, arguments)])
        return code, capsys.readouterr()

    return call


def test_decode_on_a_trained_model(benchmark, tiny_model, tmp_path):
    tokenizer = train_tokenizer(["A house.", "Two dogs run."] * 3, 300)
    for part in (tiny_model(vocab_size=len(tokenizer), max_position_embeddings=256), tokenizer):
        part.save_pretrained(tmp_path / "model")
    (tmp_path / "source").write_text("A house.\nTwo dogs run.\n\nA dog.\nTwo houses.\n")
    shared = "--threads", 2, "--workers", 2, "--dtypes", "float32", "bfloat16"
    code, printed = benchmark("--model", tmp_path / "model", "--source", tmp_path / "source", *SMALL, *shared)
    report = json.loads(printed.out)
    assert code == 0 and report["batch"].keys() == {"1", "2"} and report["num_beams"] == 2
    assert ["ours_2_workers_sentences_per_s" in figures for figures in report["batch"].values()] == [False, True]
    for figures in report["batch"].values():
        names = {"ours_sentences_per_s", "marian_sentences_per_s", "ratio_vs_marian", "best_of_ours_vs_marian_fp32"}
        names |= {"ours_bfloat16_sentences_per_s", "ratio_vs_marian_bfloat16"}
        assert names <= figures.keys() and all(value > 0 for value in figures.values())
        if "CTranslate2" not in printed.err:
            assert {"ct2_fp32_sentences_per_s", "ct2_int8_sentences_per_s"} <= figures.keys()


def test_the_weights_of_ours_stay_packed(monkeypatch):
    load_script("benchmark")
    from benchmarks import decode

    packed = []

    @contextlib.contextmanager
    def watched(model, int8):
        packed.append(model)
        assert int8 == (engine == "ours_int8")
        yield
        packed.clear()

    monkeypatch.setattr(decode, "packed_linears", watched)
    parser = argparse.ArgumentParser()
    decode.add_arguments(parser)
    args = parser.parse_args([*SMALL, "--vocab_size", "300", "--length", "3"])
    for engine in ["ours", "ours_bfloat16", "ours_int8"][: 2 + computes_int8()]:
        with contextlib.ExitStack() as stack:
            translate = decode.torch_engine(args, engine, stack)
            gc.collect()
            assert packed
            translate(decode.random_weights(args)[2])
        assert not packed


def test_a_worker_that_dies_is_named():
    with pytest.raises(UserError, match="process of some engine has died"), worker(print, "some engine") as pipe:
        answer("some engine", pipe)  # it ended before it was ready


def test_decode_needs_both_or_neither(benchmark):
    code, printed = benchmark("--model", "somewhere")
    assert code == 2 and "belong together" in printed.err
    code, printed = benchmark("--threads", 3, "--workers", 2)
    assert code == 2 and "cannot share 3 threads evenly" in printed.err
