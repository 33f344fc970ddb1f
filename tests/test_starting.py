import json
import shutil

import pytest
import torch
from trainers import metrics, train_here, weights
from transformers import AutoTokenizer, MarianConfig, MarianMTModel

from vaswani.run_config import UserError, read_config
from vaswani.starting import with_model_of_init_from


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    """A trained model with another vocabulary than the corpus would have by itself."""
    run = tmp_path_factory.mktemp("trained") / "run"
    assert train_here(corpus, run, max_steps=150, vocab_size=270, d_ff=96, log_steps=50) == 0
    return run


def config_for(corpus, tmp_path, name, **changes):
    """A config as for `corpus`, but without what a model fixes."""
    settings = json.loads((corpus / "config.yaml").read_text())
    for key in ("vocab_size", "d_model", "d_ff", "num_layers", "num_heads"):
        del settings[key]
    folder = tmp_path / "config"
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(json.dumps(settings | {"init_from": str(name)} | changes))
    return folder


def test_it_goes_on_from_the_weights_with_the_tokenizer(corpus, trained, tmp_path):
    """One update of nearly nothing: the first loss is that of the trained model, and its vocabulary is used."""
    folder = config_for(corpus, tmp_path, trained, lr_factor=1e-12, max_steps=1)
    assert train_here(folder, tmp_path / "run") == 0
    before, after = weights(trained), weights(tmp_path / "run")
    for name, weight in before.items():
        torch.testing.assert_close(after[name], weight, rtol=0, atol=1e-6)
    assert metrics(tmp_path / "run", "nll")[0] < metrics(trained, "nll")[0] - 1
    used = AutoTokenizer.from_pretrained(tmp_path / "run").get_vocab()
    assert used == AutoTokenizer.from_pretrained(trained).get_vocab() and len(used) == 270
    assert train_here(folder, tmp_path / "run", max_steps=2) == 0  # continued, not begun again
    assert metrics(tmp_path / "run", "step")[-1] == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": 512}, "asks for d_model 512 where the model has 64: .* leave these keys out"),
        ({"d_ff": 64, "num_heads": 8}, "d_ff 64 where the model has 96, num_heads 8 where the model has 4"),
        ({"vocab_size": 300}, "vocab_size 300 where the model has 270"),
        ({"target_lang": "fr"}, "translates en to de, and the config says en to fr"),
        ({"init_from": "/nowhere/at/all"}, "there is no folder /nowhere/at/all"),
    ],
)
def test_what_does_not_fit_is_said(corpus, trained, tmp_path, changes, message):
    folder = config_for(corpus, tmp_path, trained, **changes)
    with pytest.raises(UserError, match=message):
        with_model_of_init_from(read_config([str(folder / "config.yaml")]))


def test_another_tokenizer_is_refused_and_the_same_is_not(corpus, trained, tmp_path):
    other = next(
        path for path in (corpus / "prepared").glob("*/tokenizer") if len(AutoTokenizer.from_pretrained(path)) != 270
    )
    folder = config_for(corpus, tmp_path, trained, tokenizer=str(other))
    with pytest.raises(UserError, match="has another vocabulary than"):
        with_model_of_init_from(read_config([str(folder / "config.yaml")]))
    folder = config_for(corpus, tmp_path, trained, tokenizer=str(trained))
    config = with_model_of_init_from(read_config([str(folder / "config.yaml"), "--dropout", "0.3"]))
    assert (config.model.d_model, config.model.d_ff, config.model.dropout) == (64, 96, 0.3)
    assert (config.data.tokenizer, config.data.vocab_size) == (str(trained), 270)


def test_another_kind_of_model_is_refused(corpus, trained, tmp_path):
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    marian = MarianMTModel(MarianConfig(vocab_size=300, pad_token_id=0, **sizes, **heads))
    marian.save_pretrained(tmp_path / "marian")
    for path in trained.glob("tokenizer*"):
        shutil.copy(path, tmp_path / "marian")
    folder = config_for(corpus, tmp_path, tmp_path / "marian")
    with pytest.raises(UserError, match="is a marian model"):
        with_model_of_init_from(read_config([str(folder / "config.yaml")]))
