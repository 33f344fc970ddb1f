"""The same Transformer in CTranslate2: log-probabilities, greedy and beam outputs of models as if trained."""

import pytest
import torch
from load_script import load_script
from small_corpus import SENTENCES
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from vaswani.ctranslate2_export import CTranslate2Engine, save_for_ctranslate2
from vaswani.run_config import UserError
from vaswani.tokenization_vaswani import train_tokenizer
from vaswani.translation import PyTorchEngine

ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(SENTENCES * 3, 300)


@pytest.fixture
def trained(tiny_model, tokenizer):
    """A function: a model as if trained, with trained-looking padding rows, for the tokenizer."""

    def make(**options):
        model = tiny_model(vocab_size=len(tokenizer), **options)
        model.lm_head.weight.data *= 3  # sure of what it says
        model.generation_config.update(num_beams=4, length_penalty=0.6)
        return model

    return make


@pytest.mark.parametrize(
    "options",
    [
        {"num_decoder_layers": 3},
        {"position_encoding": "tensor2tensor", "attention_bias": False},
        {"position_encoding": "learned", "tie_word_embeddings": False},
        {"layer_norm_eps": 1e-3},
    ],
)
def test_log_probabilities(trained, tokenizer, tmp_path, options):
    model = trained(**options)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    save_for_ctranslate2(model, tokenizer, tmp_path / "out")
    save_for_ctranslate2(model, tokenizer, tmp_path / "int8", "int8")
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name]), name  # quantising is done to a copy
    translator = ctranslate2.Translator(str(tmp_path / "out"), intra_threads=1)
    sources, targets = [SENTENCES[i] for i in (0, 2, 4)], [SENTENCES[i] for i in (5, 4, 2)]
    pieces = [[tokenizer.convert_ids_to_tokens(tokenizer(x)["input_ids"][:-1]) for x in y] for y in (sources, targets)]
    scored = translator.score_batch(*pieces)
    for source, target, result in zip(sources, targets, scored, strict=True):
        batch = tokenizer(source, text_target=target, return_tensors="pt")
        with torch.no_grad():
            logits = model(**batch).logits[0]
        logits[:, model.config.pad_token_id] = -float("inf")
        expected = logits.log_softmax(-1).gather(1, batch["labels"][0][:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(result.log_probs), expected, rtol=0, atol=1e-4)


def test_greedy_and_beam_outputs(trained, tokenizer, tmp_path):
    """Beams under its own penalty, length^alpha, with which transformers' search, stopped early, is the same."""
    model, generator = trained(), torch.Generator().manual_seed(0)
    save_for_ctranslate2(model, tokenizer, tmp_path)
    translator = ctranslate2.Translator(str(tmp_path), intra_threads=1)
    ids = [torch.randint(2, 300, (n,), generator=generator).tolist() for n in range(1, 31)]
    limit = {"max_new_tokens": 12}
    own = {"num_beams": 4, "length_penalty": 1.0, "length_penalty_type": "length", "early_stopping": True}
    for theirs, ours in (({"beam_size": 1}, {"num_beams": 1}), ({"beam_size": 4}, own)):
        found = translator.translate_batch(
            [tokenizer.convert_ids_to_tokens(row) for row in ids],
            max_decoding_length=12, min_decoding_length=0, **theirs,
        )  # fmt: skip
        for row, result in zip(ids, found, strict=True):
            expected = model.generate(torch.tensor([[*row, 1]]), **ours, **limit)[0, 1:].tolist()
            expected = expected[: expected.index(1)] if 1 in expected else expected
            assert tokenizer.convert_tokens_to_ids(result.hypotheses[0]) == expected


def test_the_engine_ranks_as_the_paper(translator, tmp_path):
    """On words of a task half learned. CTranslate2 lets only the K best continuations end, we all 2K: where the outputs
    differ, ours is the better one."""
    model = translator()
    model.generation_config.update(num_beams=4, length_penalty=0.6)
    words = Tokenizer(models.WordLevel({"<pad>": 0, "</s>": 1} | {f"t{i}": i for i in range(2, 31)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    words = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="</s>")
    for part in (model, words):
        part.save_pretrained(tmp_path / "model")
    save_for_ctranslate2(model, words, tmp_path / "out")
    theirs = CTranslate2Engine(tmp_path / "out", threads=1)
    ours = PyTorchEngine(str(tmp_path / "model"), device="cpu")
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(2, 31, (1 + n % 9,), generator=generator).tolist() for n in range(200)]
    sentences = ["", *(" ".join(f"t{i}" for i in row) for row in ids), " "]
    mine, other = (engine.translate(sentences, n_best=2) for engine in (ours, theirs))
    assert other[0] == other[-1] == [("", 0.0)] and len(other) == len(sentences)
    same = [(a[0], b[0]) for a, b in zip(mine, other, strict=True) if a[0][0] == b[0][0]]
    assert len(same) >= 0.7 * len(sentences) and len({text for (text, _), _ in same}) > 100
    better = [a[0][1] > b[0][1] - 0.05 for a, b in zip(mine, other, strict=True)]
    assert sum(better) >= 0.97 * len(sentences)
    for (_, score), (_, theirs_score) in same:
        assert score == pytest.approx(theirs_score, rel=0.02, abs=0.02)  # ours counts what padding had
    assert all(first[1] >= second[1] for first, second in (found for found in other if len(found) == 2))
    alone = theirs.translate(sentences[:9], max_tokens=1)
    assert [found[0][0] for found in alone] == [found[0][0] for found in other[:9]]
    assert theirs.translate([]) == []


def test_refusals(trained, tokenizer, tmp_path):
    with pytest.raises(ValueError, match="d_k = d_v"):
        save_for_ctranslate2(trained(d_k=4), tokenizer, tmp_path / "a")
    with pytest.raises(ValueError, match="zero vector"):
        save_for_ctranslate2(trained(decoder_start_token_id=3), tokenizer, tmp_path / "a")
    with pytest.raises(UserError, match=r"is no model of CTranslate2: write one with scripts/export\.py"):
        CTranslate2Engine(tmp_path)
    assert not (tmp_path / "a").exists()


def test_the_script(trained, tokenizer, tmp_path, capsys):
    for part in (trained(), tokenizer):
        part.save_pretrained(tmp_path / "model")
    export = load_script("export").main
    assert (
        export([str(tmp_path / "model"), str(tmp_path / "out"), "--to", "ctranslate2", "--quantization", "int8"]) == 0
    )
    assert CTranslate2Engine(tmp_path / "out", threads=1).translate(["A house."])[0]
    assert export([str(tmp_path / "model"), str(tmp_path / "x"), "--to", "hub", "--quantization", "int8"]) == 2
    assert "leave it out" in capsys.readouterr().err
