"""VaswaniConfig: the base model by default, the paper's symbols under transformers' names, clear errors."""

import json

import pytest
from transformers import AutoConfig

from vaswani import VaswaniConfig


def test_the_defaults_are_the_base_model():
    config = VaswaniConfig()
    row = {"num_layers": 6, "num_decoder_layers": 6, "d_model": 512, "d_ff": 2048, "num_heads": 8, "d_k": 64, "d_v": 64}
    assert {name: getattr(config, name) for name in row} == row
    assert (config.dropout, config.vocab_size, config.position_encoding) == (0.1, 37000, "interleaved")
    assert (config.attention_bias, config.tie_word_embeddings, config.layer_norm_eps) == (True, True, 1e-6)
    assert (config.pad_token_id, config.eos_token_id, config.decoder_start_token_id) == (0, 1, 0)
    assert config.bos_token_id is None and config.is_encoder_decoder and config.use_cache


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("hidden_size", "d_model"),
        ("intermediate_size", "d_ff"),
        ("num_hidden_layers", "num_layers"),
        ("num_attention_heads", "num_heads"),
        ("encoder_layers", "num_layers"),
        ("decoder_layers", "num_decoder_layers"),
        ("encoder_attention_heads", "num_heads"),
        ("decoder_attention_heads", "num_heads"),
        ("layer_norm_epsilon", "layer_norm_eps"),
    ],
)
def test_transformers_names_are_accepted_read_and_set(alias, name):
    config = VaswaniConfig(**{alias: 8})
    assert getattr(config, name) == getattr(config, alias) == 8
    setattr(config, alias, 2)
    assert getattr(config, name) == 2
    assert name in config.to_dict() and alias not in config.to_dict()


def test_derived_values_follow_unless_given():
    config = VaswaniConfig(d_model=96, num_heads=6, num_layers=3)
    assert (config.d_k, config.d_v, config.num_decoder_layers) == (16, 16, 3)
    config = VaswaniConfig(d_model=96, num_heads=6, num_layers=3, d_k=5, num_decoder_layers=1)
    assert (config.d_k, config.d_v, config.num_decoder_layers) == (5, 16, 1)
    config = VaswaniConfig(d_model=10, num_heads=3, d_k=4, d_v=7)  # no multiple, but both widths are given
    assert (config.d_k, config.d_v) == (4, 7)


def test_round_trip(tmp_path):
    config = VaswaniConfig(
        vocab_size=50,
        d_model=12,
        d_ff=7,
        num_layers=2,
        num_decoder_layers=5,
        num_heads=3,
        d_k=2,
        d_v=9,
        dropout=0.3,
        position_encoding="tensor2tensor",
        max_position_embeddings=20,
        attention_bias=False,
        layer_norm_eps=1e-5,
        tie_word_embeddings=False,
        source_lang="en",
        target_lang="de",
    )
    config.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "vaswani"
    for loaded in (VaswaniConfig.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path)):
        assert type(loaded) is VaswaniConfig
        assert loaded.to_dict() | {"_name_or_path": ""} == config.to_dict()
    assert VaswaniConfig.from_pretrained(tmp_path, dropout=0.0).dropout == 0.0


def test_auto_config_knows_the_model_type():
    assert AutoConfig.for_model("vaswani", d_model=64).d_model == 64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_modle": 512}, "did you mean 'd_model'"),
        ({"num_layer": 2}, "did you mean 'num_layers'"),
        ({"droput": 0.1}, "did you mean 'dropout'"),
        ({"d_model": 100, "num_heads": 8}, "d_model=100 is not a multiple of num_heads=8"),
        ({"d_model": 15, "num_heads": 3}, "d_model=15 must be even"),
        ({"num_layers": 0}, "num_layers=0 must be at least 1"),
        ({"num_decoder_layers": 0}, "num_decoder_layers=0 must be at least 1"),
        ({"d_ff": -1}, "d_ff=-1 must be at least 1"),
        ({"vocab_size": 0}, "vocab_size=0 must be at least 1"),
        ({"d_k": 0}, "d_k=0 must be at least 1"),
        ({"num_heads": 0}, "num_heads=0 must be at least 1"),
        ({"dropout": 1.0}, "dropout=1.0 must lie in"),
        ({"dropout": -0.1}, "dropout=-0.1 must lie in"),
        ({"pad_token_id": 37000}, "pad_token_id=37000 is outside the vocabulary of 37000"),
        ({"decoder_start_token_id": -1}, "decoder_start_token_id=-1 is outside"),
        ({"is_encoder_decoder": False}, "is an encoder-decoder"),
    ],
)
def test_what_no_transformer_can_have_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        VaswaniConfig(**options)


@pytest.mark.parametrize("options", [{"position_encoding": "rotary"}, {"d_model": "512"}, {"dropout": None}])
def test_values_of_the_wrong_kind_are_refused(options):
    with pytest.raises(Exception, match=next(iter(options))):
        VaswaniConfig(**options)


def test_an_odd_width_is_allowed_with_learned_positions():
    assert VaswaniConfig(d_model=15, num_heads=3, position_encoding="learned").d_k == 5


def test_bad_values_set_later_are_refused_before_saving(tmp_path):
    config = VaswaniConfig()
    config.num_layers = 0
    with pytest.raises(Exception, match="num_layers=0 must be at least 1"):  # transformers wraps the ValueError here
        config.save_pretrained(tmp_path)


def test_options_that_are_not_ours_are_kept(tmp_path):
    VaswaniConfig(my_note="kept").save_pretrained(tmp_path)
    assert VaswaniConfig.from_pretrained(tmp_path).my_note == "kept"


@pytest.mark.parametrize(("encoder", "decoder"), [(1, 3), (3, 1), (2, 2)])
def test_caches_see_the_depth_of_the_decoder(encoder, decoder):
    config = VaswaniConfig(num_layers=encoder, num_decoder_layers=decoder)
    assert config.get_text_config(decoder=True).num_hidden_layers == decoder
    assert config.get_text_config(encoder=True).num_hidden_layers == encoder
    assert config.get_text_config() is config  # resize_token_embeddings writes the new vocab_size through it
