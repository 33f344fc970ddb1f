"""What transformers offers a sequence-to-sequence model, each tested for its values, not only for running."""

import itertools
import math

import pytest
import torch
from transformers import GenerationConfig, set_seed
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from vaswani import VaswaniForSeq2SeqLM

PAD, EOS = 0, 1
LENGTHS = (9, 4, 6, 2, 7)


def close(a, b, tolerance=1e-5):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.fixture
def plain(translator):
    """The trained model without generation options of its own: length penalty and limits are transformers'."""
    model = translator()
    model.generation_config = GenerationConfig(pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=PAD)
    return model


def log_probabilities(model, source, sequences):
    """Per generated token; zero after EOS. Beam search does not share out what padding would have had."""
    logits = model(source, decoder_input_ids=sequences[:, :-1]).logits
    chosen = logits.log_softmax(-1).gather(-1, sequences[:, 1:, None])[..., 0]
    ended = (sequences[:, 1:] == EOS).int().cumsum(1) - (sequences[:, 1:] == EOS).int() > 0
    return chosen.masked_fill(ended, 0.0)


# ------------------------------------------------------------------------------------------ attention, recorded outputs
@pytest.mark.parametrize("masked", [True, False])
def test_eager_equals_sdpa(tiny_model, sentences, masked):
    model, source, target = tiny_model(d_k=5, d_v=3), sentences(*LENGTHS), sentences(*LENGTHS[::-1], seed=1)
    if not masked:
        source, target = source.clamp(min=2), target.clamp(min=2)
    logits = {}
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        assert model.config._attn_implementation == implementation
        logits[implementation] = model(source, decoder_input_ids=target).logits
    close(logits["eager"], logits["sdpa"])


@pytest.mark.gpu
@pytest.mark.parametrize("implementation", ["flex_attention", "flash_attention_2"])
def test_eager_equals_the_kernels_of_a_gpu(tiny_model, sentences, implementation):
    if implementation == "flash_attention_2":
        pytest.importorskip("flash_attn")
    model = tiny_model(d_model=64, num_heads=2).cuda().to(torch.bfloat16)
    source, target = sentences(*LENGTHS).cuda(), sentences(*LENGTHS, seed=1).cuda()
    expected = model(source, decoder_input_ids=target).logits
    model.set_attn_implementation(implementation)
    close(model(source, decoder_input_ids=target).logits[target != PAD], expected[target != PAD], 5e-2)


def test_attentions_and_hidden_states_are_recorded(tiny_model, sentences):
    model = tiny_model(num_layers=1, num_decoder_layers=3, num_heads=2, d_k=5, d_v=3, attn_implementation="eager")
    source, target = sentences(6, 4), sentences(5, 5, seed=1)
    outputs = model(source, decoder_input_ids=target, output_attentions=True, output_hidden_states=True)
    assert [len(outputs[name]) for name in ("encoder_attentions", "decoder_attentions", "cross_attentions")] == [
        1,
        3,
        3,
    ]
    for name, shape in (("encoder", (2, 2, 6, 6)), ("decoder", (2, 2, 5, 5)), ("cross", (2, 2, 5, 6))):
        for weights in outputs[f"{name}_attentions"]:
            assert weights.shape == shape
            close(weights.sum(-1), torch.ones(shape[:-1]))
    for weights in (*outputs.encoder_attentions, *outputs.cross_attentions):
        assert (weights[1, :, :, 4:] == 0).all()  # padding
    assert len(outputs.encoder_hidden_states) == 2 and len(outputs.decoder_hidden_states) == 4
    assert all(states.shape == (2, 6, 16) for states in outputs.encoder_hidden_states)
    assert all(states.shape == (2, 5, 16) for states in outputs.decoder_hidden_states)
    assert torch.equal(outputs.encoder_hidden_states[-1], outputs.encoder_last_hidden_state)
    close(model.lm_head(outputs.decoder_hidden_states[-1]), outputs.logits)
    for i, layer in enumerate(model.get_decoder().layers):  # they are what the layers see and give
        states = outputs.decoder_hidden_states[i]
        kv = layer.self_attn
        k, v = (p(states).view(2, 5, 2, -1).transpose(1, 2) for p in (kv.k_proj, kv.v_proj))
        q = kv.q_proj(states).view(2, 5, 2, -1).transpose(1, 2)
        scores = (q @ k.mT / 5**0.5).masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf)
        close(scores.softmax(-1), outputs.decoder_attentions[i])
        assert v.shape[-1] == 3


def test_one_hidden_state_can_be_selected_from_the_end(tiny_model, sentences):
    model, source = tiny_model(num_layers=1, num_decoder_layers=3), sentences(6, 4)
    everything = model(source, decoder_input_ids=source, output_hidden_states=True).decoder_hidden_states
    selected = model(source, decoder_input_ids=source, output_hidden_states=[-2]).decoder_hidden_states
    assert [state is None for state in selected] == [True, True, False, True]
    assert torch.equal(selected[2], everything[2])


def test_keyword_arguments_reach_every_attention(tiny_model, sentences):
    model, source, seen = tiny_model(num_layers=1, num_decoder_layers=2), sentences(6, 4), []
    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def record(module, *args, **kwargs):
        seen.append(kwargs.get("note"))
        return sdpa(module, *args, **kwargs)

    try:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = record
        model(source, decoder_input_ids=source, note="kept")
    finally:
        del ALL_ATTENTION_FUNCTIONS["sdpa"]  # of the overrides: the library's own is seen again
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa
    assert seen == ["kept"] * (1 + 2 * 2)


# ----------------------------------------------------------------------------------------------------------- generation
@pytest.mark.parametrize("options", [{}, {"num_beams": 4}, {"num_beams": 4, "num_return_sequences": 3}], ids=str)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_caches_and_attention_do_not_change_the_output(translator, sentences, options, implementation):
    source = sentences(*LENGTHS)
    options = {**options, "max_new_tokens": 12}
    expected = translator().generate(source, use_cache=False, **options)
    assert len({tuple(row) for row in expected.tolist()}) == len(expected)
    for cache in ("dynamic", "static", "offloaded" if torch.cuda.is_available() else "dynamic"):
        assert torch.equal(translator(implementation).generate(source, cache_implementation=cache, **options), expected)


def test_source_padding_and_batches_do_not_change_the_output(translator, sentences):
    model, source = translator(), sentences(*LENGTHS)
    for beams in (1, 4):
        options = {"num_beams": beams, "max_new_tokens": 12}
        together = model.generate(source, **options)
        given = model.generate(input_ids=source, attention_mask=source.ne(PAD).long(), **options)
        assert torch.equal(together, given)
        for row, length, output in zip(source, LENGTHS, together.tolist(), strict=True):
            alone = model.generate(row[None, :length], **options)[0].tolist()
            assert output[: len(alone)] == alone and set(output[len(alone) :]) <= {PAD, EOS}


def test_sampling_is_reproducible_and_varied(translator, sentences):
    model, source = translator(), sentences(*LENGTHS)
    options = {"do_sample": True, "temperature": 1.5, "top_k": 0, "max_new_tokens": 10, "num_return_sequences": 3}
    outputs = []
    for seed in (1, 1, 2):
        set_seed(seed)
        outputs.append(model.generate(source, **options))
    assert torch.equal(outputs[0], outputs[1]) and outputs[0].shape[0] == 15
    assert outputs[0].shape != outputs[2].shape or not torch.equal(outputs[0], outputs[2])
    assert all(((output >= 0) & (output < 31)).all() for output in outputs)
    greedy = model.generate(source, max_new_tokens=10)
    for options in ({"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-6}):
        assert torch.equal(model.generate(source, do_sample=True, max_new_tokens=10, **options), greedy)


@pytest.mark.parametrize("options", [{"top_k": 3}, {"top_k": 0, "top_p": 0.6}], ids=str)
def test_samples_come_from_the_likeliest_tokens(translator, sentences, options):
    model, source = translator(), sentences(*LENGTHS)
    set_seed(0)
    sequences = model.generate(source, do_sample=True, temperature=2.0, max_new_tokens=8, min_new_tokens=8, **options)
    logits = model(source, decoder_input_ids=sequences[:, :-1]).logits
    logits[..., [PAD, EOS]] = -math.inf
    probabilities = (logits / 2.0).softmax(-1)
    chosen = probabilities.gather(-1, sequences[:, 1:, None])
    better = probabilities.masked_fill(probabilities <= chosen, 0.0)
    if "top_p" in options:
        assert (better.sum(-1) < 0.6).all() and (better.sum(-1) > 0.3).any()
    else:
        assert ((better > 0).sum(-1) < 3).all() and ((better > 0).sum(-1) == 2).any()


def test_sample_frequencies_are_the_probabilities(translator, sentences):
    model, source = translator(), sentences(5)
    set_seed(0)
    options = {"do_sample": True, "top_k": 0, "temperature": 2.0, "max_new_tokens": 1, "num_return_sequences": 4000}
    first = model.generate(source, **options)[:, 1]
    logits = model(source, decoder_input_ids=torch.tensor([[PAD]])).logits[0, 0] / 2.0
    logits[PAD] = -math.inf
    close(torch.bincount(first, minlength=31) / 4000, logits.softmax(-1), 0.03)


def test_beam_search_with_enough_beams_finds_the_best_sequence(tiny_model, sentences):
    model = tiny_model(vocab_size=5, seed=3)
    model.generation_config = GenerationConfig(pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=PAD)
    source, scores = sentences(4, vocab_size=5), {}
    for tokens in itertools.product(range(1, 5), repeat=3):
        tokens = tokens[: tokens.index(EOS) + 1 if EOS in tokens else 3]
        scores[tokens] = log_probabilities(model, source, torch.tensor([[PAD, *tokens]])).sum().item()
    options = {"num_beams": 30, "num_return_sequences": 5, "max_new_tokens": 3, "length_penalty": 0.0}
    outputs = model.generate(
        source, early_stopping="never", output_scores=True, return_dict_in_generate=True, **options
    )
    best = sorted(scores.items(), key=lambda item: -item[1])[:5]
    found = [tuple(row[1 : row.index(EOS) + 1 if EOS in row else None]) for row in outputs.sequences.tolist()]
    assert found == [tokens for tokens, _ in best]
    close(outputs.sequences_scores, torch.tensor([score for _, score in best]))


def test_beam_scores_are_log_probabilities(plain, sentences):
    source = sentences(*LENGTHS)
    options = {"num_beams": 4, "num_return_sequences": 2, "max_new_tokens": 14, "length_penalty": 0.6}
    outputs = plain.generate(source, output_scores=True, return_dict_in_generate=True, **options)
    chosen = log_probabilities(plain, source.repeat_interleave(2, 0), outputs.sequences)
    lengths = (chosen != 0).sum(-1)
    close(outputs.sequences_scores, chosen.sum(-1) / lengths**0.6, 1e-4)
    scores = outputs.sequences_scores.view(-1, 2)
    assert (scores[:, 0] >= scores[:, 1]).all()
    greedy = plain.generate(source, max_new_tokens=14)
    greedy = log_probabilities(plain, source, greedy)
    assert (scores[:, 0] >= greedy.sum(-1) / (greedy != 0).sum(-1) ** 0.6 - 1e-5).all()


def test_beam_sampling(translator, sentences):
    model, source = translator(), sentences(*LENGTHS)
    options = {"do_sample": True, "num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 12, "temperature": 2.0}
    outputs = []
    for seed in (1, 1, 2):
        set_seed(seed)
        outputs.append(model.generate(source, **options).tolist())
    assert outputs[0] == outputs[1] != outputs[2] and len(outputs[0]) == 10


def test_assisted_generation(translator, tiny_model, sentences):
    """A small model guesses, the large one checks several tokens at once: the same output in fewer steps."""
    model, source, calls = translator(), sentences(9), []
    model.get_decoder().register_forward_hook(lambda *_: calls.append(1))
    expected = model.generate(source, max_new_tokens=12)
    alone = len(calls)
    for assistant in (translator(), tiny_model()):
        calls.clear()
        assert torch.equal(model.generate(source, max_new_tokens=12, assistant_model=assistant), expected)
        if assistant.config.d_model == model.config.d_model:
            assert len(calls) < alone  # its guesses are right
    assert torch.equal(model.generate(source, max_new_tokens=12, prompt_lookup_num_tokens=2), expected)


def test_a_given_beginning_is_continued(translator, sentences):
    model, source = translator(), sentences(9)
    whole = model.generate(source, max_new_tokens=8, min_new_tokens=8)
    for beams in (1, 3):
        rest = model.generate(
            source, decoder_input_ids=whole[:, :4], num_beams=beams, max_new_tokens=5, min_new_tokens=5
        )
        assert torch.equal(rest[:, :4], whole[:, :4]) and rest.shape == whole.shape
        if beams == 1:
            assert torch.equal(rest, whole)


def test_constraints_on_the_output(translator, sentences):
    model, source = translator(), sentences(*LENGTHS)
    free = model.generate(source, max_new_tokens=10)
    frequent = free[free > EOS].mode().values.item()
    without = model.generate(source, max_new_tokens=10, bad_words_ids=[[frequent]])
    assert (free == frequent).any() and not (without == frequent).any()
    for row in model.generate(source, max_new_tokens=10, min_new_tokens=10, no_repeat_ngram_size=1):
        assert len(set(row[1:].tolist())) == 10
    forced = model.generate(source, max_new_tokens=10, forced_bos_token_id=7)
    assert (forced[:, 1] == 7).all()


def test_attentions_and_scores_of_generation(translator, sentences):
    model, source = translator("eager"), sentences(6, 4)
    outputs = model.generate(
        source,
        max_new_tokens=5,
        min_new_tokens=5,
        return_dict_in_generate=True,
        output_attentions=True,
        output_logits=True,
    )
    assert len(outputs.cross_attentions) == 5 and outputs.cross_attentions[0][2].shape == (2, 4, 1, 6)
    full = model(source, decoder_input_ids=outputs.sequences[:, :-1], output_attentions=True)
    for step in range(5):
        close(outputs.logits[step], full.logits[:, step])
        close(outputs.cross_attentions[step][2][:, :, 0], full.cross_attentions[2][:, :, step])


# ---------------------------------------------------------------------------------------------------- inputs and logits
def test_embeddings_instead_of_tokens(translator, sentences):
    model, source, target = translator(), sentences(*LENGTHS), sentences(*LENGTHS[::-1], seed=1)
    mask = source.ne(PAD)
    embedded = model.get_input_embeddings()(source)
    expected = model(source, attention_mask=mask, decoder_input_ids=target).logits
    assert torch.equal(model(inputs_embeds=embedded, attention_mask=mask, decoder_input_ids=target).logits, expected)
    decoder_embedded = model.get_decoder().embed_tokens(target)
    logits = model(inputs_embeds=embedded, attention_mask=mask, decoder_inputs_embeds=decoder_embedded).logits
    assert torch.equal(logits, expected)
    generated = model.generate(inputs_embeds=embedded, attention_mask=mask, max_new_tokens=9)
    assert torch.equal(generated, model.generate(source, max_new_tokens=9))


def test_the_cache_under_its_former_name(tiny_model, sentences):
    model, source = tiny_model(), sentences(6, 4)
    target, encoded = sentences(4, 4, seed=1), model.get_encoder()(source, source.ne(PAD))
    expected = model(source, decoder_input_ids=target).logits[:, 2:]
    for forward in (model, model.model, lambda **inputs: model.get_decoder()(**inputs)):
        cache = model(encoder_outputs=encoded, attention_mask=source.ne(PAD), decoder_input_ids=target[:, :2]).cache
        if forward in (model, model.model):
            inputs = {"encoder_outputs": encoded, "attention_mask": source.ne(PAD), "decoder_input_ids": target[:, 2:]}
        else:
            memory = encoded.last_hidden_state
            inputs = {
                "input_ids": target[:, 2:],
                "encoder_hidden_states": memory,
                "encoder_attention_mask": source.ne(PAD),
            }
        with pytest.warns(FutureWarning, match="past_key_values"):
            outputs = forward(past_key_values=cache, **inputs)
        close(outputs.logits if forward is model else model.lm_head(outputs.last_hidden_state), expected)


def test_logits_to_keep(tiny_model, sentences):
    model, source = tiny_model(), sentences(6, 6)
    expected = model(source, decoder_input_ids=source).logits
    close(model(source, decoder_input_ids=source, logits_to_keep=2).logits, expected[:, -2:])
    close(model(source, decoder_input_ids=source, logits_to_keep=torch.tensor([1, 4])).logits, expected[:, [1, 4]])


def test_outputs_as_tuples(tiny_model, sentences):
    model, source = tiny_model(), sentences(6, 4)
    outputs = model(source, labels=source, output_hidden_states=True)
    values = model(source, labels=source, output_hidden_states=True, return_dict=False)
    assert torch.equal(values[0], outputs.loss) and torch.equal(values[1], outputs.logits)
    assert len(values) == len(outputs.to_tuple())


# -------------------------------------------------------------------------------------------------- training, precision
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated")  # Trainer's option has this name
@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_gives_the_same_gradients(tiny_model, sentences, reentrant):
    model, source, labels = tiny_model(dropout=0.3).train(), sentences(6, 4), sentences(5, 5, seed=1)
    results, calls = [], []
    model.get_decoder().layers[0].fc1.register_forward_hook(lambda *_: calls.append(1))
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        set_seed(0)
        loss = model(source, labels=labels).loss
        loss.backward()
        results.append([loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
        model.zero_grad()
    assert len(calls) == 3  # the checkpointed layer ran a second time
    for plain, checkpointed in zip(*results, strict=True):
        close(checkpointed, plain, 1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_half_precision_is_finite_and_close(translator, sentences, dtype, implementation):
    model, source, target = translator(implementation), sentences(*LENGTHS), sentences(*LENGTHS[::-1], seed=1)
    expected = model(source, decoder_input_ids=target).logits
    greedy = model.generate(source, max_new_tokens=8)
    half = translator(implementation).to(dtype)
    outputs = half(source, labels=target)
    assert outputs.logits.dtype == dtype and outputs.logits.isfinite().all() and outputs.loss.isfinite()
    logits = half(source, decoder_input_ids=target).logits.float()
    assert (logits - expected).abs().mean() < (0.05 if dtype == torch.bfloat16 else 0.01) * expected.abs().mean()
    generated = half.generate(source, max_new_tokens=8)
    assert (generated[:, 1:3] == greedy[:, 1:3]).float().mean() > 0.8
    outputs.loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in half.parameters())


def test_mixed_precision(tiny_model, sentences):
    model, source = tiny_model(), sentences(6, 4)
    expected = model(source, decoder_input_ids=source).logits
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(source, decoder_input_ids=source).logits
        loss = model(source, labels=source).loss
    assert (logits.float() - expected).abs().max() < 0.1 * expected.abs().max()
    loss.backward()
    assert model.lm_head.weight.grad.dtype == torch.float32


# -------------------------------------------------------------------------------------------------- embeddings, loading
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("rows", [40, 20])
def test_resizing_the_vocabulary(tiny_model, sentences, tmp_path, tied, rows):
    model, source = tiny_model(tie_word_embeddings=tied), sentences(6, 4, vocab_size=20)
    before = model(source, decoder_input_ids=source).logits
    model.resize_token_embeddings(rows)
    assert model.config.vocab_size == rows
    matrices = [model.get_encoder().embed_tokens, model.get_decoder().embed_tokens, model.lm_head]
    assert [matrix.weight.shape for matrix in matrices] == [(rows, 16)] * 3
    assert [matrices[0].num_embeddings, matrices[1].num_embeddings, model.lm_head.out_features] == [rows] * 3
    assert len({matrix.weight.data_ptr() for matrix in matrices}) == (1 if tied else 3)
    after = model(source, decoder_input_ids=source).logits
    close(after[..., :20], before[..., :20])
    new = torch.full((1, 3), rows - 1)
    assert model(new, decoder_input_ids=new, labels=new).loss.isfinite()
    assert model(new, decoder_input_ids=torch.tensor([[PAD]])).logits.shape == (1, 1, rows)

    model.save_pretrained(tmp_path)
    loaded, info = VaswaniForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert torch.equal(loaded(source, decoder_input_ids=source).logits, after)


def test_resizing_to_a_multiple(tiny_model):
    for tied in (True, False):
        model = tiny_model(tie_word_embeddings=tied)
        model.resize_token_embeddings(pad_to_multiple_of=16, mean_resizing=False)
        assert len(model.get_encoder().embed_tokens.weight) == len(model.get_decoder().embed_tokens.weight) == 32
        assert model.lm_head.out_features == model.config.vocab_size == 32


def test_new_input_embeddings_replace_what_is_tied(tiny_model):
    model = tiny_model()
    new = type(model.get_input_embeddings())(model.config)
    model.set_input_embeddings(new)
    model.tie_weights()
    assert model.get_encoder().embed_tokens is model.get_decoder().embed_tokens is new
    assert model.lm_head.weight is new.weight


def test_a_checkpoint_in_shards(tiny_model, sentences, tmp_path):
    model, source = tiny_model(), sentences(6, 4)
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    loaded, info = VaswaniForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    expected = model(source, decoder_input_ids=source).logits
    assert torch.equal(loaded(source, decoder_input_ids=source).logits, expected)


def test_encoder_and_decoder_are_saved_alone(tiny_model, sentences, tmp_path):
    model, source = tiny_model(), sentences(6, 4)
    for stack in (model.get_encoder(), model.get_decoder()):
        stack.save_pretrained(tmp_path)
        loaded = type(stack).from_pretrained(tmp_path).eval()
        inputs = {"encoder_hidden_states": torch.ones(2, 3, 16)} if stack is model.get_decoder() else {}
        close(loaded(source, **inputs).last_hidden_state, stack(source, **inputs).last_hidden_state)


def test_generation_options_survive_saving(tiny_model, tmp_path):
    model = tiny_model(eos_token_id=2)
    options = model.generation_config.to_dict()
    assert options["eos_token_id"] == 2 and options["pad_token_id"] == options["decoder_start_token_id"] == PAD
    model.save_pretrained(tmp_path)
    assert VaswaniForSeq2SeqLM.from_pretrained(tmp_path).generation_config.to_dict() == options


def test_device_map(tiny_model, sentences, tmp_path):
    pytest.importorskip("accelerate")
    model, source = tiny_model(), sentences(6, 4)
    model.save_pretrained(tmp_path)
    loaded = VaswaniForSeq2SeqLM.from_pretrained(tmp_path, device_map="auto")
    inputs = source.to(loaded.device)
    close(loaded(inputs, decoder_input_ids=inputs).logits.cpu(), model(source, decoder_input_ids=source).logits)
    stacks = [f"model.decoder.{name}" for name, _ in model.get_decoder().named_children() if name != "layers"]
    on_cpu = ["model.shared", "model.encoder", *stacks, "lm_head"]
    split = VaswaniForSeq2SeqLM.from_pretrained(
        tmp_path,
        device_map={"model.decoder.layers": "disk", **dict.fromkeys(on_cpu, "cpu")},
        offload_folder=tmp_path / "disk",
    )
    with torch.no_grad():
        close(split(source, decoder_input_ids=source).logits, model(source, decoder_input_ids=source).logits)
        assert torch.equal(split.generate(source, max_new_tokens=4), model.generate(source, max_new_tokens=4))


# --------------------------------------------------------------------------------------------- Trainer, PEFT, compilers
@pytest.fixture
def trainer(tiny_config, tmp_path):
    """A function: a Seq2SeqTrainer of a new model that shall learn to copy, `batch` sentences x `accumulation`."""
    pytest.importorskip("accelerate")
    from tokenizers import Tokenizer, models
    from transformers import DataCollatorForSeq2Seq, PreTrainedTokenizerFast, Seq2SeqTrainer, Seq2SeqTrainingArguments

    words = {"<pad>": PAD, "</s>": EOS, **{str(n): n for n in range(2, 31)}}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="2")), pad_token="<pad>", eos_token="</s>"
    )
    generator = torch.Generator().manual_seed(0)
    data = []
    for _ in range(240):  # lengths differ within an update, or a mean of means would be right too
        length = int(torch.randint(1, 9, (), generator=generator))
        tokens = [*torch.randint(2, 31, (length,), generator=generator).tolist(), EOS]
        data.append({"input_ids": tokens, "attention_mask": [1] * len(tokens), "labels": tokens})

    def make(batch: int, accumulation: int, steps: int, **options):
        set_seed(0)
        model = VaswaniForSeq2SeqLM(tiny_config(dropout=0.0))
        arguments = Seq2SeqTrainingArguments(
            output_dir=tmp_path,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulation,
            max_steps=steps,
            learning_rate=5e-3,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            dataloader_num_workers=0,
            **options,
        )
        collator = DataCollatorForSeq2Seq(tokenizer, model=model)
        return Seq2SeqTrainer(model, arguments, collator, data, eval_dataset=data[:8], processing_class=tokenizer)

    return make


def test_trainer_gives_the_same_under_accumulation(trainer):
    runs = []
    for batch, accumulation in ((12, 1), (4, 3)):
        run = trainer(batch, accumulation, steps=4)
        run.train()
        runs.append([(entry["loss"], entry["grad_norm"]) for entry in run.state.log_history if "grad_norm" in entry])
    assert len(runs[0]) == 4
    for one, accumulated in zip(*runs, strict=True):
        assert accumulated == pytest.approx(one, rel=1e-3)


def test_trainer_trains_and_evaluates(trainer):
    run = trainer(24, 1, steps=40, predict_with_generate=True)
    run.train()
    losses = [entry["loss"] for entry in run.state.log_history if "grad_norm" in entry]
    assert sum(losses[-5:]) < 0.85 * sum(losses[:5])
    predictions = run.predict(run.eval_dataset, max_length=12)
    assert predictions.metrics["test_loss"] < losses[0] and predictions.predictions.shape[0] == 8


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # peft asks for it
def test_lora(translator, sentences):
    peft = pytest.importorskip("peft")
    model, source, labels = translator(), sentences(*LENGTHS), sentences(*LENGTHS, seed=1)
    before = model(source, decoder_input_ids=labels).logits
    lora = peft.LoraConfig(task_type="SEQ_2_SEQ_LM", r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    adapted = peft.get_peft_model(model, lora)
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    assert len(trained) == 2 * 2 * (2 + 2 * 3)
    close(adapted(source, decoder_input_ids=labels).logits, before)
    adam = torch.optim.Adam(trained, lr=2e-2)
    losses = []
    for _ in range(15):
        loss = adapted(source, labels=labels).loss
        losses.append(loss.item())
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert losses[-1] < 0.8 * losses[0]
    adapted.eval()
    logits = adapted(source, decoder_input_ids=labels).logits
    generated = adapted.generate(input_ids=source, max_new_tokens=6)
    merged = adapted.merge_and_unload()
    assert type(merged) is VaswaniForSeq2SeqLM
    close(merged(source, decoder_input_ids=labels).logits, logits, 1e-4)
    assert torch.equal(merged.generate(source, max_new_tokens=6), generated)


@pytest.mark.slow
def test_compiled_forward_and_backward(tiny_model, sentences):
    torch._dynamo.reset()
    model = tiny_model(num_layers=1)
    compiled = torch.compile(model, fullgraph=True)
    for lengths in ((6, 4), (7, 5, 3)):  # the second time with other sizes
        source = sentences(*lengths)
        mask = source.ne(PAD)
        outputs = [
            each(source, attention_mask=mask, decoder_input_ids=source, use_cache=False) for each in (compiled, model)
        ]
        close(outputs[0].logits, outputs[1].logits)
    gradients = []
    for each in (compiled, model):
        model.zero_grad()
        each(source, attention_mask=mask, labels=source).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    close(*gradients)


@pytest.mark.slow
def test_compiled_decoding_with_a_static_cache(translator, sentences):
    torch._dynamo.reset()
    model, source = translator(), sentences(6, 4)
    expected = model.generate(source, max_new_tokens=8)
    model.forward = torch.compile(model.forward, fullgraph=True)
    assert torch.equal(model.generate(source, max_new_tokens=8, cache_implementation="static"), expected)


@pytest.mark.slow
def test_export_with_any_batch_and_lengths(tiny_model, sentences):
    model, source, target = tiny_model(), sentences(6, 4), sentences(5, 5, seed=1)
    any_size = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    inputs = {"input_ids": source, "attention_mask": source.ne(PAD), "decoder_input_ids": target}
    shapes = {**dict.fromkeys(inputs, any_size), "use_cache": None}
    exported = torch.export.export(model, (), {**inputs, "use_cache": False}, dynamic_shapes=shapes).module()
    source, target = sentences(9, 3, 7, seed=2), sentences(4, 8, 2, seed=3)
    inputs = {"input_ids": source, "attention_mask": source.ne(PAD), "decoder_input_ids": target, "use_cache": False}
    close(exported(**inputs).logits, model(**inputs).logits)
