"""Section 5: what a run starts from: a new model, or (`--init_from`) one that was trained before, with its tokenizer."""

import dataclasses

import torch
from transformers import AutoTokenizer

from .configuration_vaswani import VaswaniConfig
from .modeling_vaswani import VaswaniForSeq2SeqLM
from .run_config import ModelSettings, RunConfig, UserError
from .translation import load

MAY_DIFFER = {"dropout", "max_position_embeddings"}  # the first is of training, the second bounds only a learned table


def with_model_of_init_from(config: RunConfig) -> RunConfig:
    """The config with the architecture and the tokenizer of the model that `init_from` names.

    Raises:
        UserError: there is no such model, it is another kind, or the config says otherwise than it does.
    """
    name = config.training.init_from
    if name is None:
        return config
    model, tokenizer = load(name, device="cpu")
    theirs = model.config
    if theirs.model_type != VaswaniConfig.model_type:
        raise UserError(f"{name} is a {theirs.model_type} model: init_from takes one that this package has trained")
    settings = {field.name: getattr(theirs, field.name) for field in dataclasses.fields(ModelSettings)}
    wanted = vars(config.model) | {"vocab_size": config.data.vocab_size}
    learned = theirs.position_encoding == "learned"
    may_differ = {"dropout"} if learned else MAY_DIFFER
    other = {
        key: (wanted[key], value)
        for key, value in (settings | {"vocab_size": theirs.vocab_size}).items()
        if key in config.given and key not in may_differ and wanted[key] != value
    }
    if other:
        listed = ", ".join(f"{key} {mine!r} where the model has {its!r}" for key, (mine, its) in other.items())
        raise UserError(
            f"the config asks for {listed}: the architecture and the vocabulary of {name} are fixed; leave these keys out, "
            f"or train without init_from"
        )
    languages = (theirs.source_lang, theirs.target_lang)
    mine = config.data.languages
    if None not in languages and languages != mine:
        raise UserError(
            f"{name} translates {languages[0]} to {languages[1]}, and the config says {mine[0]} to {mine[1]}: set source_lang "
            f"and target_lang to the model's, or train without init_from"
        )
    if len(tokenizer) > theirs.vocab_size:
        raise UserError(
            f"the tokenizer of {name} has {len(tokenizer):,} entries and its model {theirs.vocab_size:,}: they do not belong "
            f"together"
        )
    if config.data.tokenizer and config.data.tokenizer != name:
        vocabulary = AutoTokenizer.from_pretrained(config.data.tokenizer).get_vocab()
        if vocabulary != tokenizer.get_vocab():
            raise UserError(
                f"tokenizer={config.data.tokenizer} has another vocabulary than {name}: leave it out, the model brings its own"
            )
    settings |= {key: wanted[key] for key in may_differ & config.given}
    return config._replace(
        model=ModelSettings(**settings),
        data=dataclasses.replace(config.data, tokenizer=name, vocab_size=theirs.vocab_size),
    )


def starting_model(config: RunConfig, tokenizer, longest: int, device: torch.device) -> VaswaniForSeq2SeqLM:
    """The model before the first update; its weights follow from torch's random state, or are those of `init_from`.

    Args:
        longest: tokens of the longest sentence in the data.

    Raises:
        ValueError: the settings describe no model, or one that is too short for the data.
    """
    settings = config.training
    if config.model.position_encoding == "learned" and longest > config.model.max_position_embeddings:
        raise ValueError(
            f"a sentence has {longest} tokens, over the {config.model.max_position_embeddings} learned positions: raise "
            f"max_position_embeddings"
        )
    rows = (
        config.data.vocab_size
        if settings.init_from
        else -(-len(tokenizer) // settings.vocab_multiple) * settings.vocab_multiple
    )
    languages = dict(zip(("source_lang", "target_lang"), config.data.languages, strict=True))
    tokens = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    tokens["decoder_start_token_id"] = tokenizer.pad_token_id  # its vector is the zero vector
    architecture = VaswaniConfig(**vars(config.model), vocab_size=rows, **languages, **tokens)
    attention = ("eager" if device.type == "cpu" else "sdpa") if settings.attention == "auto" else settings.attention
    architecture._attn_implementation = attention
    model = VaswaniForSeq2SeqLM(architecture)
    if settings.gradient_checkpointing:
        model.activation_checkpointing_enable()
    if settings.torch_compile:
        model.model.encoder.compile(dynamic=True)
        model.model.decoder.compile(dynamic=True)
    if settings.init_from:
        model.load_state_dict(load(settings.init_from, device="cpu")[0].state_dict())
    model.generation_config.num_beams = settings.num_beams
    model.generation_config.length_penalty = settings.length_penalty
    return model
