"""The model is the paper's: sizes, ties, initialisation, norms, dropout, padding, caching, lengths, the loss.

The witness at the end is transformers' Marian, which with the right options is the architecture of 2017 too.
"""

import math

import pytest
import torch
from safetensors import safe_open
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    MarianConfig,
    MarianMTModel,
    initialization,
)
from transformers.cache_utils import DynamicCache, EncoderDecoderCache, StaticCache
from transformers.modeling_outputs import BaseModelOutput

from vaswani import VaswaniConfig, VaswaniForSeq2SeqLM, VaswaniModel
from vaswani.dropout_vaswani import VaswaniDropout
from vaswani.modeling_vaswani import VaswaniAttention

PAD, EOS = 0, 1
TIED = ["model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"]


def close(a, b, tolerance=1e-5):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def shifted(sentences: torch.Tensor) -> torch.Tensor:
    return torch.cat((torch.full_like(sentences[:, :1], PAD), sentences[:, :-1]), dim=1)


# ---------------------------------------------------------------------------------------------------- sizes and the tie
@pytest.mark.parametrize(("rows", "parameters"), [(37000, 63_082_496), (40960, 65_110_016)])
def test_base_has_the_papers_number_of_parameters(rows, parameters):
    with torch.device("meta"):
        model = VaswaniForSeq2SeqLM(VaswaniConfig(vocab_size=rows))
    assert sum(weight.numel() for weight in model.parameters()) == parameters  # 63.1 and 65.1 million


def assert_one_matrix(model):
    matrices = [model.get_parameter(name) for name in TIED] + [model.lm_head.weight]
    assert all(matrix is matrices[0] for matrix in matrices)


def test_both_embeddings_and_the_softmax_are_one_matrix(tiny_model, tmp_path, sentences):
    model = tiny_model()
    assert_one_matrix(model)
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        names = {name for name in file.keys() if "embed" in name or "shared" in name or "lm_head" in name}  # noqa: SIM118
    assert names == {"model.shared.weight"}

    loaded, info = VaswaniForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert_one_matrix(loaded)
    source, target = sentences(6, 4), sentences(5, 7, seed=1)
    assert torch.equal(loaded(source, decoder_input_ids=target).logits, model(source, decoder_input_ids=target).logits)


def test_untied_there_are_three_matrices(tiny_model, tmp_path, sentences):
    model = tiny_model(tie_word_embeddings=False)
    assert not hasattr(model.model, "shared")
    matrices = [model.get_parameter(name) for name in TIED[1:]] + [model.lm_head.weight]
    assert len({matrix.data_ptr() for matrix in matrices}) == 3
    model.save_pretrained(tmp_path)
    loaded, info = VaswaniForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    source, target = sentences(6, 4), sentences(5, 7, seed=1)
    assert torch.equal(loaded(source, decoder_input_ids=target).logits, model(source, decoder_input_ids=target).logits)


def test_auto_classes_know_the_model(tiny_config, tmp_path):
    assert type(AutoModel.from_config(tiny_config())) is VaswaniModel
    VaswaniForSeq2SeqLM(tiny_config()).save_pretrained(tmp_path)
    assert type(AutoModelForSeq2SeqLM.from_pretrained(tmp_path)) is VaswaniForSeq2SeqLM
    assert type(AutoModel.from_pretrained(tmp_path)) is VaswaniModel


def test_depths_of_the_two_stacks(tiny_model):
    model = tiny_model(num_layers=1, num_decoder_layers=3)
    assert (len(model.get_encoder().layers), len(model.get_decoder().layers)) == (1, 3)


# --------------------------------------------------------------------------------- initialisation: tensor2tensor v1.0.3
@pytest.fixture(scope="module")
def fresh():
    torch.manual_seed(0)
    options = {"vocab_size": 1000, "num_layers": 1, "position_encoding": "learned", "tie_word_embeddings": False}
    return VaswaniForSeq2SeqLM(VaswaniConfig(**options))  # untied and learned, so that no matrix is missing


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("encoder.layers.0.self_attn.q_proj", 0.0541),  # sqrt(6 / (512 + 3 * 512)): Q, K and V were one matrix
        ("encoder.layers.0.self_attn.k_proj", 0.0541),
        ("encoder.layers.0.self_attn.v_proj", 0.0541),
        ("encoder.layers.0.self_attn.out_proj", 0.0765),  # sqrt(6 / (512 + 512))
        ("encoder.layers.0.fc1", 0.0484),  # sqrt(6 / (512 + 2048))
        ("encoder.layers.0.fc2", 0.0484),
        ("decoder.layers.0.self_attn.q_proj", 0.0541),
        ("decoder.layers.0.self_attn.k_proj", 0.0541),
        ("decoder.layers.0.self_attn.v_proj", 0.0541),
        ("decoder.layers.0.encoder_attn.q_proj", 0.0765),
        ("decoder.layers.0.encoder_attn.k_proj", 0.0625),  # sqrt(6 / (512 + 2 * 512)): K and V were one matrix
        ("decoder.layers.0.encoder_attn.v_proj", 0.0625),
        ("decoder.layers.0.encoder_attn.out_proj", 0.0765),
    ],
)
def test_projections_start_glorot_uniform_and_fused(fresh, name, bound):
    linear = fresh.model.get_submodule(name)
    assert linear.weight.abs().max().item() == pytest.approx(bound, rel=2e-3)
    assert linear.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=1e-2)  # of a uniform distribution
    assert not linear.bias.any()


def test_the_fused_bound_counts_d_k_and_d_v(tiny_config):
    model = VaswaniForSeq2SeqLM(tiny_config(d_model=64, num_heads=4, d_k=96, d_v=160, num_layers=1))
    layer = model.model.decoder.layers[0]
    for linear, columns in (
        (layer.self_attn.q_proj, 4 * (96 + 96 + 160)),
        (layer.self_attn.v_proj, 4 * (96 + 96 + 160)),
        (layer.encoder_attn.q_proj, 4 * 96),
        (layer.encoder_attn.k_proj, 4 * (96 + 160)),
        (layer.encoder_attn.v_proj, 4 * (96 + 160)),
    ):
        assert linear.weight.abs().max().item() == pytest.approx(math.sqrt(6 / (64 + columns)), rel=5e-3)
    assert layer.encoder_attn.out_proj.weight.abs().max().item() == pytest.approx(math.sqrt(6 / (640 + 64)), rel=5e-3)


def test_embeddings_softmax_and_norms_start_as_in_tensor2tensor(fresh):
    model = fresh.model
    embeddings = (model.encoder.embed_tokens, model.decoder.embed_tokens)
    positions = (model.encoder.embed_positions, model.decoder.embed_positions)
    for matrix in (*embeddings, *positions, fresh.lm_head):
        assert matrix.weight[1:].std().item() == pytest.approx(512**-0.5, rel=1e-2)
        assert matrix.weight[1:].mean().item() == pytest.approx(0, abs=1e-3)
        assert matrix.weight.abs().max() > 4 * 512**-0.5  # normal, not uniform
    assert not any(embedding.weight[PAD].any() for embedding in embeddings)
    norms = [module for module in fresh.modules() if isinstance(module, nn.LayerNorm)]
    assert all((norm.weight == 1).all() and not norm.bias.any() and norm.eps == 1e-6 for norm in norms)


def test_layers_missing_from_a_checkpoint_start_the_same_way(tiny_config, tmp_path):
    options = {"d_model": 64, "num_layers": 1}
    VaswaniForSeq2SeqLM(tiny_config(**options)).save_pretrained(tmp_path)
    model = VaswaniForSeq2SeqLM.from_pretrained(tmp_path, num_decoder_layers=2)  # loading builds weights elsewhere
    attention = model.model.decoder.layers[1].self_attn
    assert attention.q_proj.weight.abs().max().item() == pytest.approx(math.sqrt(6 / (4 * 64)), rel=1e-2)
    assert not attention.q_proj.bias.any()


# ---------------------------------------------------------------------------------------------------- the padding token
def test_a_trained_pad_row_reaches_neither_encoder_nor_decoder(tiny_model, sentences):
    model, source, target = tiny_model(), sentences(6, 3), shifted(sentences(5, 7, seed=1))
    source[0, 2] = PAD  # also where it is no padding at the end
    ones = torch.ones_like(source)
    before = model(source, attention_mask=ones, decoder_input_ids=target)
    assert model.model.shared.weight[PAD].abs().max() > 0.1
    with torch.no_grad():
        model.model.shared.weight[PAD] *= -30
    after = model(source, attention_mask=ones, decoder_input_ids=target)
    assert torch.equal(before.encoder_last_hidden_state, after.encoder_last_hidden_state)
    assert torch.equal(before.logits[..., 1:], after.logits[..., 1:])
    close(after.logits[..., PAD], before.logits[..., PAD] * -30)  # forward keeps the logit of padding


def test_the_decoder_starts_from_the_zero_vector(tiny_model):
    embedding = tiny_model().get_decoder().embed_tokens
    assert not embedding(torch.tensor([[PAD]])).any()
    close(embedding(torch.tensor([[5]])), 4 * embedding.weight[None, None, 5])  # sqrt(d_model) = 4


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_an_empty_sentence_hurts_nobody(tiny_model, sentences, implementation):
    model = tiny_model(attn_implementation=implementation)
    source = torch.cat((sentences(5), torch.zeros(1, 5, dtype=torch.long)))
    outputs = model(source, labels=source.masked_fill(source == PAD, -100))
    outputs.loss.backward()
    assert outputs.logits.isfinite().all() and all(weight.grad.isfinite().all() for weight in model.parameters())
    close(outputs.logits[0], model(source[:1], labels=source[:1]).logits[0])


def test_another_padding_token_and_another_start(tiny_model, sentences):
    model = tiny_model(pad_token_id=7, decoder_start_token_id=2)
    embedding = model.get_encoder().embed_tokens
    assert not embedding(torch.tensor([7])).any() and embedding(torch.tensor([0])).any()
    source = sentences(5, 3).masked_fill(sentences(5, 3) == PAD, 7)
    assert model.generate(source, max_new_tokens=3)[:, 0].tolist() == [2, 2]
    labels = torch.tensor([[5, 6, -100, 8]])
    assert model.prepare_decoder_input_ids_from_labels(labels).tolist() == [[2, 5, 6, 7]]
    with torch.no_grad():  # now 7 has the largest logit, 0 the next
        model.get_decoder().layers[-1].final_layer_norm.bias[0] = 20.0
        model.model.shared.weight[7], model.model.shared.weight[0] = torch.eye(16)[0] * 40, torch.eye(16)[0] * 20
    assert (model.generate(source, max_new_tokens=3)[:, 1:] == 0).all()


GENERATION = {
    "greedy": {},
    "beam": {"num_beams": 4},
    "n-best": {"num_beams": 4, "num_return_sequences": 4},
    "sampling": {"do_sample": True},
    "sampling from the best only": {"do_sample": True, "top_k": 1},
    "nucleus sampling": {"do_sample": True, "top_p": 0.5, "temperature": 2.0},
    "beam sampling": {"do_sample": True, "num_beams": 3},
    "suppress_tokens": {"suppress_tokens": [4, 5]},
    "static cache": {"cache_implementation": "static"},
    "without cache": {"use_cache": False},
    "own configuration": {"generation_config": GenerationConfig(num_beams=2, max_new_tokens=8, min_new_tokens=3)},
}


@pytest.mark.parametrize("strategy", GENERATION)
def test_padding_is_never_generated(tiny_model, sentences, strategy):
    model = tiny_model()
    with torch.no_grad():  # now padding has by far the largest logit at every position
        model.get_decoder().layers[-1].final_layer_norm.bias[0] = 20.0
        model.model.shared.weight[PAD] = torch.eye(16)[0] * 20
    source = sentences(5, 3, 7)
    assert (model(source, decoder_input_ids=source).logits.argmax(-1) == PAD).all()
    options = {**GENERATION[strategy]}
    if "generation_config" not in options:
        options |= {"max_new_tokens": 8, "min_new_tokens": 3}
    for row in model.generate(source, **options).tolist():
        tokens = row[1 : row.index(EOS) if EOS in row else None]
        assert PAD not in tokens and len(tokens) > 0


# ------------------------------------------------------------------------------------- norms, dropout, scale: section 3
def test_normalisation_comes_last_and_there_is_no_final_one(tiny_model, sentences):
    model, source = tiny_model(num_layers=3, num_decoder_layers=2, layer_norm_eps=1e-12), sentences(6, 6)
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 3 * 2 + 2 * 3
    with torch.no_grad():
        for norm in norms:
            norm.weight.fill_(1.0)
            norm.bias.zero_()
    outputs = model(source, decoder_input_ids=source, output_hidden_states=True)
    for states in (*outputs.encoder_hidden_states[1:], *outputs.decoder_hidden_states[1:]):
        close(states.mean(-1), torch.zeros(states.shape[:-1]))
        close(states.square().mean(-1), torch.ones(states.shape[:-1]))
    final = model.get_encoder().layers[-1].final_layer_norm.register_forward_hook(lambda *args: seen.append(args[2]))
    seen = []
    assert model(source, decoder_input_ids=source).encoder_last_hidden_state is seen[0]
    final.remove()


@pytest.fixture
def recorded_dropout(monkeypatch):
    """What is dropped, in order, as (probability, tensor); nothing really is."""
    calls = []

    def record(x, p=0.5, training=True, inplace=False):
        if training and p > 0:
            calls.append((p, x))
        return x

    def record_in_layers(self, x, residual=None):
        return record(x, self.p, self.training) if residual is None else residual + record(x, self.p, self.training)

    monkeypatch.setattr(nn.functional, "dropout", record)  # what attention would use
    monkeypatch.setattr(VaswaniDropout, "forward", record_in_layers)
    return calls


def test_dropout_on_embedding_sums_and_sublayer_outputs_and_nowhere_else(tiny_model, sentences, recorded_dropout):
    model, source, target = tiny_model(dropout=0.25), sentences(6, 4), shifted(sentences(5, 5, seed=1))
    model.set_attn_implementation("eager")
    outputs = {}
    for name, module in model.named_modules():
        if name.endswith(("out_proj", "fc2")):
            module.register_forward_hook(lambda module, args, output, name=name: outputs.update({name: output}))
    model.train()
    model(source, decoder_input_ids=target)

    def embedded(stack, ids):
        return stack.embed_tokens(ids) + stack.embed_positions.weight[: ids.shape[1]]

    expected = [embedded(model.get_encoder(), source)]
    expected += [outputs[f"model.encoder.layers.{i}.{part}"] for i in (0, 1) for part in ("self_attn.out_proj", "fc2")]
    expected += [embedded(model.get_decoder(), target)]
    parts = ("self_attn.out_proj", "encoder_attn.out_proj", "fc2")
    expected += [outputs[f"model.decoder.layers.{i}.{part}"] for i in (0, 1) for part in parts]
    assert [p for p, _ in recorded_dropout] == [0.25] * 12
    for (_, dropped), tensor in zip(recorded_dropout, expected, strict=True):
        close(dropped, tensor)


def test_no_dropout_in_sdpa_and_none_in_evaluation(tiny_model, sentences, recorded_dropout, monkeypatch):
    model, source = tiny_model(dropout=0.25, attn_implementation="sdpa"), sentences(6, 4)
    inside = []
    sdpa = nn.functional.scaled_dot_product_attention

    def record(*args, dropout_p=0.0, **kwargs):
        inside.append(dropout_p)
        return sdpa(*args, dropout_p=dropout_p, **kwargs)

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", record)
    model(source, decoder_input_ids=source)
    assert recorded_dropout == []
    model.train()(source, decoder_input_ids=source)
    assert len(recorded_dropout) == 12
    assert inside == [0.0] * 12


def test_the_residual_itself_is_not_dropped(tiny_model, monkeypatch):
    layer = tiny_model(dropout=0.5).get_encoder().layers[0].train()
    x = torch.randn(1, 3, 16)
    monkeypatch.setattr("vaswani.dropout_vaswani.random_mask", lambda x, dropped: torch.zeros_like(x))
    close(layer(x, None), layer.final_layer_norm(layer.self_attn_layer_norm(x)))


@pytest.mark.parametrize("position_encoding", ["interleaved", "learned"])
def test_embeddings_are_scaled_and_positions_are_not(tiny_model, sentences, position_encoding):
    model, source = tiny_model(position_encoding=position_encoding), sentences(6, 6)
    states = model(source, decoder_input_ids=source, output_hidden_states=True)
    rows = model.model.shared.weight[source] * math.sqrt(16)
    close(states.encoder_hidden_states[0], rows + model.get_encoder().embed_positions.weight[:6])
    close(states.decoder_hidden_states[0], rows + model.get_decoder().embed_positions.weight[:6])


@pytest.mark.parametrize("attention_bias", [True, False])
def test_biases_of_the_projections_are_an_option(tiny_model, attention_bias):
    attentions = [
        module for module in tiny_model(attention_bias=attention_bias).modules() if isinstance(module, VaswaniAttention)
    ]
    assert len(attentions) == 6
    for attention in attentions:
        assert all((linear.bias is not None) == attention_bias for linear in attention.children())


# ----------------------------------------------------------------------------------- padding, order, causality, caching
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("mask", ["given", "found from the padding"])
def test_padding_and_company_change_nothing(tiny_model, sentences, implementation, mask):
    model = tiny_model(attn_implementation=implementation)
    lengths = [(6, 5), (9, 3), (2, 8), (4, 4)]
    source, target = sentences(*(s for s, _ in lengths)), shifted(sentences(*(t for _, t in lengths), seed=1))
    masks = {}
    if mask == "given":
        masks["attention_mask"] = source.ne(PAD)
        masks["decoder_attention_mask"] = sentences(*(t for _, t in lengths), seed=1).ne(PAD)
    together = model(source, decoder_input_ids=target, **masks).logits
    for i, (s, t) in enumerate(lengths):
        alone = model(source[i : i + 1, :s], decoder_input_ids=target[i : i + 1, :t]).logits
        close(together[i, :t], alone[0])
    order = torch.tensor([2, 0, 3, 1])
    reordered = model(source[order], decoder_input_ids=target[order], **{k: v[order] for k, v in masks.items()}).logits
    close(reordered, together[order])


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_position_sees_the_whole_source_and_the_earlier_target(tiny_model, sentences, implementation):
    model, source, target = tiny_model(attn_implementation=implementation), sentences(6), shifted(sentences(6, seed=1))
    logits = model(source, decoder_input_ids=target).logits
    changed = target.clone()
    changed[0, 3] = (changed[0, 3] + 1) % 20 + 2
    difference = (model(source, decoder_input_ids=changed).logits - logits).abs().amax(-1)[0]
    assert (difference[:3] == 0).all() and (difference[3:] > 1e-3).all()
    for position in range(6):
        other = source.clone()
        other[0, position] = (other[0, position] + 1) % 20 + 2
        difference = (model(other, decoder_input_ids=target).logits - logits).abs().amax(-1)[0]
        assert (difference > 1e-4).all()


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_masked_target_position_is_seen_by_no_other(tiny_model, sentences, implementation):
    model, source, target = tiny_model(attn_implementation=implementation), sentences(6), shifted(sentences(6, seed=1))
    mask, changed = torch.tensor([[1, 1, 0, 1, 1, 1]]), target.clone()
    changed[0, 2] = (changed[0, 2] + 1) % 20 + 2
    logits, other = (
        model(source, decoder_input_ids=ids, decoder_attention_mask=mask).logits for ids in (target, changed)
    )
    close(other[:, 3:], logits[:, 3:])
    assert (model(source, decoder_input_ids=target).logits - logits)[:, 3:].abs().amax(-1).min() > 1e-3


def empty_cache(kind, config, source):
    if kind == "dynamic":
        return EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config))
    decoder = config.get_text_config(decoder=True)
    lengths = (12, source.shape[1])
    return EncoderDecoderCache(*(StaticCache(config=decoder, max_cache_len=length) for length in lengths))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("steps", [[1] * 8, [3, 1, 4]])
@pytest.mark.parametrize("options", [{}, {"d_k": 3, "d_v": 5}, {"position_encoding": "learned"}])
def test_one_step_at_a_time_equals_all_at_once(tiny_model, sentences, implementation, kind, steps, options):
    model = tiny_model(num_layers=1, num_decoder_layers=3, attn_implementation=implementation, **options)
    source, target = sentences(6, 4), shifted(sentences(8, 8, seed=1))
    expected = model(source, decoder_input_ids=target).logits
    encoded, cache, logits = model.get_encoder()(source, source.ne(PAD)), empty_cache(kind, model.config, source), []
    for piece in target.split(steps, dim=1):
        step = model(encoder_outputs=encoded, attention_mask=source.ne(PAD), decoder_input_ids=piece, cache=cache)
        logits.append(step.logits)
    close(torch.cat(logits, dim=1), expected)


def test_the_cache_holds_the_source_once_and_the_target_so_far(tiny_model, sentences):
    model, source, calls = tiny_model(), sentences(6, 4), []
    model.get_decoder().layers[0].encoder_attn.k_proj.register_forward_hook(lambda *_: calls.append(1))
    cache = model(source, decoder_input_ids=shifted(sentences(3, 3, seed=1)), use_cache=True).cache
    assert isinstance(cache, EncoderDecoderCache) and cache.get_seq_length() == 3
    assert cache.cross_attention_cache.layers[1].keys.shape == (2, 2, 6, 8)
    model.generate(source, max_new_tokens=5, min_new_tokens=5)
    assert len(calls) == 2  # once in the forward above, once in all of generate()
    assert model(source, decoder_input_ids=source, use_cache=False).cache is None


def test_a_plain_cache_is_accepted(tiny_model, sentences):
    model, source, target = tiny_model(), sentences(6), shifted(sentences(4, seed=1))
    cache = model(source, decoder_input_ids=target[:, :3], cache=DynamicCache(config=model.config)).cache
    logits = model(source, decoder_input_ids=target[:, 3:], cache=cache).logits
    close(logits[:, 0], model(source, decoder_input_ids=target).logits[:, 3])


@pytest.mark.parametrize(("encoder", "decoder"), [(1, 3), (3, 1)])
@pytest.mark.parametrize("beams", [1, 3])
def test_generation_with_stacks_of_different_depth(tiny_model, sentences, encoder, decoder, beams):
    model, source = tiny_model(num_layers=encoder, num_decoder_layers=decoder), sentences(6, 4)
    options = {"num_beams": beams, "max_new_tokens": 8, "output_logits": True, "return_dict_in_generate": True}
    expected = model.generate(source, use_cache=False, **options)
    for cache in ("dynamic", "static"):
        outputs = model.generate(source, cache_implementation=cache, **options)
        assert torch.equal(outputs.sequences, expected.sequences)
        close(outputs.logits, expected.logits)


def test_greedy_generation_is_argmax_step_by_step(translator, sentences):
    model, source = translator(), sentences(9, 4)
    tokens = torch.full((2, 1), PAD)
    for _ in range(8):
        logits = model(source, decoder_input_ids=tokens).logits[:, -1]
        logits[:, [PAD, EOS]] = -math.inf
        tokens = torch.cat((tokens, logits.argmax(-1, keepdim=True)), dim=1)
    assert torch.equal(model.generate(source, max_new_tokens=8, suppress_tokens=[EOS]), tokens)


def test_it_learned_to_translate(translator, sentences):
    model, source = translator(), sentences(*[7] * 100, seed=7)
    labels = torch.where(source == EOS, EOS, 32 - source)
    accuracy = (model(source, labels=labels).logits.argmax(-1) == labels).float().mean()
    elsewhere = (model(source.roll(1, 0), labels=labels).logits.argmax(-1) == labels).float().mean()
    assert accuracy > 0.45 and elsewhere < 0.15  # of unseen sentences, by chance 0.03: translations follow the source


# ------------------------------------------------------------------------------------------------ lengths and positions
def extend(model, length):
    """A copy of the model with a table of `length` positions, which is otherwise the same."""
    longer = VaswaniForSeq2SeqLM(VaswaniConfig(**{**model.config.to_dict(), "max_position_embeddings": length})).eval()
    longer.load_state_dict(model.state_dict())
    return longer


@pytest.mark.parametrize("layout", ["interleaved", "tensor2tensor"])
def test_sinusoids_have_no_limit(tiny_model, sentences, layout):
    model = tiny_model(position_encoding=layout, max_position_embeddings=5)
    longer, source, target = extend(model, 40), sentences(12, 9), shifted(sentences(11, 11, seed=1))
    expected = longer(source, decoder_input_ids=target).logits
    close(model(source, decoder_input_ids=target).logits, expected, 1e-6)
    for options in ({}, {"cache_implementation": "static"}, {"use_cache": False}):
        options = {**options, "max_new_tokens": 14, "min_new_tokens": 14}
        assert torch.equal(model.generate(source, **options), longer.generate(source, **options))


def test_learned_positions_have_a_limit(tiny_model, sentences):
    model = tiny_model(position_encoding="learned", max_position_embeddings=5)
    short, long = sentences(5), sentences(6)
    model(short, decoder_input_ids=short)
    with pytest.raises(ValueError, match="a sequence of 6 tokens is longer than the 5 learned positions"):
        model(long, decoder_input_ids=short)
    with pytest.raises(ValueError, match="a sequence of 6 tokens is longer than the 5 learned positions"):
        model(short, decoder_input_ids=long)
    with pytest.raises(ValueError, match="learned positions"):
        model.generate(short, max_new_tokens=9, min_new_tokens=9)


def test_positions_keep_full_precision_in_every_type(tiny_model):
    positions = tiny_model().double().get_encoder().embed_positions.weight
    angle = 3 / 10000 ** (4 / 16)
    assert positions[3, 4].item() == pytest.approx(math.sin(angle), abs=1e-15)
    assert positions[3, 5].item() == pytest.approx(math.cos(angle), abs=1e-15)
    back = tiny_model().bfloat16().float().get_encoder().embed_positions.weight
    assert torch.equal(back, positions.float())


def test_positions_do_not_depend_on_the_initialisation_of_weights(tiny_model, tiny_config):
    with initialization.no_init_weights():
        model = VaswaniForSeq2SeqLM(tiny_config())
    expected = tiny_model().get_encoder().embed_positions.weight
    assert torch.equal(model.get_decoder().embed_positions.weight, expected)


def test_positions_survive_loading_in_another_type(tiny_model, tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path)
    loaded = VaswaniForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    for stack in (loaded.get_encoder(), loaded.get_decoder()):
        assert torch.equal(stack.embed_positions.weight, model.get_encoder().embed_positions.weight.bfloat16())


# -------------------------------------------------------------------------------------------------- labels and the loss
def test_the_loss_is_the_mean_cross_entropy_of_the_labels_themselves(tiny_model, sentences):
    model, source = tiny_model(), sentences(6, 4)
    labels = sentences(5, 3, seed=1)
    labels[labels == PAD] = -100
    outputs = model(source, labels=labels)
    logarithms, expected, count = outputs.logits.log_softmax(-1), 0.0, 0
    for b in range(2):
        for t in range(5):
            if labels[b, t] != -100:
                expected, count = expected - logarithms[b, t, labels[b, t]], count + 1
    assert count == 8
    close(outputs.loss, expected / count)
    close(model(source, labels=labels, num_items_in_batch=20).loss, expected / 20)  # over accumulated batches


def test_the_decoder_input_is_made_from_the_labels(tiny_model, sentences):
    model, source = tiny_model(), sentences(6, 4)
    labels = torch.tensor([[5, 6, 7, EOS], [8, EOS, -100, -100]])
    shifted_labels = torch.tensor([[PAD, 5, 6, 7], [PAD, 8, EOS, PAD]])
    assert torch.equal(model.prepare_decoder_input_ids_from_labels(labels), shifted_labels)
    close(model(source, labels=labels).logits, model(source, decoder_input_ids=shifted_labels).logits)
    given = model(source, labels=labels, decoder_input_ids=shifted_labels.flip(0)).logits  # what is given is used
    close(given, model(source, decoder_input_ids=shifted_labels.flip(0)).logits)
    embedded = model.get_decoder().embed_tokens(shifted_labels.flip(0))
    close(model(source, labels=labels, decoder_inputs_embeds=embedded).logits, given)
    assert model(source, labels=labels).cache is None


def test_what_is_missing_is_said(tiny_model, sentences):
    model, source = tiny_model(), sentences(4)
    embedded = model.get_encoder().embed_tokens(source)
    with pytest.raises(ValueError, match="exactly one of decoder_input_ids and decoder_inputs_embeds"):
        model(source)
    with pytest.raises(ValueError, match="exactly one of decoder_input_ids and decoder_inputs_embeds"):
        model(source, decoder_input_ids=source, decoder_inputs_embeds=embedded)
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        model(decoder_input_ids=source)
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        model(source, inputs_embeds=embedded, decoder_input_ids=source)
    with pytest.raises(ValueError, match="the decoder needs encoder_hidden_states"):
        model.get_decoder()(source)


def test_encoder_outputs_may_be_a_tuple(tiny_model, sentences):
    model, source = tiny_model(), sentences(6, 4)
    mask, encoded = source.ne(PAD), model.get_encoder()(source, source.ne(PAD)).last_hidden_state
    expected = model(source, decoder_input_ids=source).logits
    for outputs in (BaseModelOutput(last_hidden_state=encoded), (encoded,)):
        close(model(encoder_outputs=outputs, attention_mask=mask, decoder_input_ids=source).logits, expected)


# -------------------------------------------------------------------------------------------------- the witness: Marian
def marian_like(model: VaswaniForSeq2SeqLM) -> MarianMTModel:
    """The same model as transformers' Marian: the state dict has the same names, up to the table of positions."""
    config = model.config
    other = MarianMTModel(
        MarianConfig(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            encoder_layers=config.num_layers,
            decoder_layers=config.num_decoder_layers,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            encoder_ffn_dim=config.d_ff,
            decoder_ffn_dim=config.d_ff,
            max_position_embeddings=config.max_position_embeddings,
            activation_function="relu",
            scale_embedding=True,
            forced_eos_token_id=None,
            pad_token_id=PAD,
            eos_token_id=EOS,
            decoder_start_token_id=PAD,
            attn_implementation=config._attn_implementation,
        )
    )
    table = model.get_encoder().embed_positions.weight
    missing, unexpected = other.load_state_dict(model.state_dict(), strict=False)
    assert unexpected == [] and set(missing) == {
        "final_logits_bias",
        "model.encoder.embed_positions.weight",
        "model.decoder.embed_positions.weight",
    }
    with torch.no_grad():
        other.model.shared.weight[PAD] = 0  # Marian feeds this row to the decoder
        for stack in (other.model.encoder, other.model.decoder):
            stack.embed_positions.weight.copy_(table)
    for module in other.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = config.layer_norm_eps
    return other.eval()


@pytest.fixture(params=["eager", "sdpa"])
def pair(request, translator):
    model = translator(request.param)
    return model, marian_like(model)


def test_logits_equal_marians(pair, sentences):
    model, marian = pair
    assert model.config._attn_implementation == marian.config._attn_implementation
    source, target = sentences(9, 4, 6, 1), shifted(sentences(5, 8, 2, 6, seed=1))
    mask = source.ne(PAD)
    ours = model(source, attention_mask=mask, decoder_input_ids=target).logits
    theirs = marian(source, attention_mask=mask, decoder_input_ids=target).logits
    close(ours[..., 1:], theirs[..., 1:])
    assert not theirs[..., PAD].any() and ours[..., PAD].abs().max() > 0.1


@pytest.mark.parametrize("beams", [1, 4])
def test_generation_equals_marians(pair, sentences, beams):
    model, marian = pair
    source = sentences(9, 4, 6, 1, 7, 3, 12, 5)
    plain = GenerationConfig(pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=PAD)
    model.generation_config, marian.generation_config = (
        plain,
        plain,
    )  # length penalty and limit as transformers has them
    options = {"num_beams": beams, "max_length": 24, "suppress_tokens": [PAD], "attention_mask": source.ne(PAD)}
    if beams > 1:
        options["length_penalty"] = 0.6
    ours, theirs = (each.generate(source, **options) for each in (model, marian))
    assert torch.equal(ours, theirs)
    assert len({tuple(row) for row in ours.tolist()}) == len(source)  # outputs depend on the source, and they end
    assert (ours == EOS).any(dim=1).all()
