import pytest
import torch
from small_corpus import SENTENCES

from vaswani import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani.run_config import UserError
from vaswani.tokenization_vaswani import train_tokenizer
from vaswani.translation import PyTorchEngine, load, translate


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    tokenizer = train_tokenizer(SENTENCES, 300)
    config = VaswaniConfig(vocab_size=len(tokenizer), d_model=32, d_ff=64, num_layers=1, num_heads=2)
    VaswaniForSeq2SeqLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.mark.parametrize("num_beams", [1, 3])
def test_order_is_kept_and_batching_changes_nothing(folder, num_beams):
    model, tokenizer = load(str(folder))
    options = {"num_beams": num_beams, "max_new_tokens": 12}
    together = translate(model, tokenizer, SENTENCES, **options)
    one_by_one = [translate(model, tokenizer, [sentence], **options)[0] for sentence in SENTENCES]
    small = translate(model, tokenizer, SENTENCES, max_tokens=20, **options)
    assert together == one_by_one == small
    assert together[1] == together[3] == ""
    assert len(set(together)) > 1
    assert translate(model, tokenizer, []) == []


def test_one_translation_of_a_model_whose_settings_ask_for_more(folder):
    engine = PyTorchEngine(str(folder))
    model, tokenizer = engine.pipe.model, engine.tokenizer
    expected = translate(model, tokenizer, SENTENCES, num_beams=2)
    model.generation_config.update(num_return_sequences=2, num_beams=2)
    assert translate(model, tokenizer, SENTENCES) == expected
    assert engine.translate(SENTENCES) == [[(text, 0.0)] for text in expected]
    assert [found[0][0] for found in engine.translate(SENTENCES, n_best=1)] == expected
    assert {len(found) for found in engine.translate(SENTENCES[:1], n_best=2)} == {2}


def test_nul_characters_are_no_text(folder):
    model, tokenizer = load(str(folder))
    sentence = SENTENCES[0]
    assert translate(model, tokenizer, ["\0" + sentence[:3] + "\0" + sentence[3:], "\0"]) == [
        *translate(model, tokenizer, [sentence]),
        "",
    ]


def test_an_unknown_dtype(folder):
    with pytest.raises(UserError, match="dtype='int4': choose one of float32, bfloat16"):
        PyTorchEngine(str(folder), dtype="int4")


def test_training_mode_is_kept(folder):
    model, tokenizer = load(str(folder))
    model.train()
    translate(model, tokenizer, ["A house."], max_new_tokens=3)
    assert model.training


def test_lone_surrogate(folder):
    model, tokenizer = load(str(folder))
    with pytest.raises(ValueError, match="sentence 2 holds a lone surrogate"):
        translate(model, tokenizer, ["fine", "broken \udc80"])


def test_what_is_no_model(tmp_path):
    with pytest.raises(UserError, match=r"no folder here, so the Hub was asked"):
        load("no/such-model")
    for name in (str(tmp_path / "none"), "./none", "runs/some/where"):
        with pytest.raises(UserError, match=f"there is no folder {name}: give a run folder"):
            load(name)
    with pytest.raises(UserError, match="cannot load a translation model from"):
        load(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "vaswani"}')
    with pytest.raises(UserError, match="cannot load a translation model from"):
        load(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(UserError, match="cannot load a translation model from"):
        load(str(tmp_path))
