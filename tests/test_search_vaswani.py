"""The loop for plain translation against transformers' own with our hooks, which test_generation_vaswani.py checks."""

import pytest
import torch
from transformers import StoppingCriteria

from vaswani import packing_vaswani, search_vaswani
from vaswani.search_vaswani import FEW, ROOM, Layer, attend, best_continuations, mask_type

PAD, EOS = 0, 1
THEIRS = {"return_dict_in_generate": True}  # transformers' loop gives all that belongs to it, ours tokens and scores
OURS = {"return_dict_in_generate": True, "output_sequences_scores": True}


def batches(count: int, size: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count // size):
        lengths = torch.randint(1, 12, (size,), generator=generator)
        source = torch.randint(2, 31, (size, 12), generator=generator)
        source[torch.arange(12) >= lengths[:, None]] = PAD
        source[torch.arange(size), lengths - 1] = EOS
        yield source[:, : lengths.max()]


@pytest.fixture
def which_loop(monkeypatch):
    """A function: the loop that a call of `generate` ran, 'ours' or 'theirs', and its result."""
    import vaswani.generation_vaswani as generation

    ran = []
    for name in ("beam_search", "greedy_search"):
        search = getattr(generation, name)
        monkeypatch.setattr(generation, name, lambda *a, search=search: ran.append(1) or search(*a))

    def call(model, source, **options):
        ran.clear()
        result = model.generate(source, **options)
        return "ours" if ran else "theirs", result

    return call


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 1},
        {"num_beams": 4, "length_penalty": 0.6},
        {"num_beams": 4, "length_penalty": 0.6, "num_return_sequences": 4},
        {"num_beams": 3, "length_penalty": 0.0, "max_length_offset": 0},
        {"num_beams": 2, "length_penalty": -1.0, "min_length": 6},
        {"num_beams": 4, "length_penalty": 1.0, "min_new_tokens": 5, "max_new_tokens": 8},
        {"num_beams": 1, "min_new_tokens": 3, "max_new_tokens": 7},
        {"num_beams": 4, "max_length_offset": 2, "max_length_offset_scope": "batch"},
    ],
)
def test_outputs_are_those_of_transformers_loop(translator, which_loop, options, attention, monkeypatch):
    model, finished = translator(attention), set()
    if attention == "eager":
        everything = dict.fromkeys(packing_vaswani.SMALLEST, 1)
        monkeypatch.setattr(packing_vaswani, "SMALLEST", everything)  # small matrices are not packed otherwise
    count = 1000 if attention == "sdpa" and options == {"num_beams": 4, "length_penalty": 0.6} else 100
    for source in batches(count, 100 if attention == "sdpa" else 5):  # few sentences take another way through attention
        loop, ours = which_loop(model, source, **options, **OURS)
        other, theirs = which_loop(model, source, **options, **THEIRS, output_scores=options["num_beams"] > 1)
        assert (loop, other) == ("ours", "theirs")
        torch.testing.assert_close(ours.sequences, theirs.sequences, rtol=0, atol=0)
        if options["num_beams"] > 1:
            torch.testing.assert_close(ours.sequences_scores, theirs.sequences_scores, rtol=1e-5, atol=1e-5)
        finished |= set((ours.sequences > EOS).sum(1).tolist())
    assert len(finished) > 2
    assert torch.equal(model.generate(source, **options), theirs.sequences)  # as a plain tensor


def test_greedy_scores_are_log_probabilities(translator):
    model, source = translator(), next(batches(50, 50))
    ours = model.generate(source, num_beams=1, **OURS)
    theirs = model.generate(source, num_beams=1, **THEIRS, output_scores=True)
    steps = model.compute_transition_scores(theirs.sequences, theirs.scores, normalize_logits=True)
    expected = steps.masked_fill(theirs.sequences[:, 1:].eq(PAD), 0).sum(-1)
    torch.testing.assert_close(ours.sequences_scores, expected, rtol=1e-5, atol=1e-5)


def test_what_is_not_plain_runs_in_transformers_loop(translator, which_loop):
    class Never(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return torch.zeros(len(input_ids), dtype=torch.bool)

    model, source = translator("eager"), next(batches(4, 4))
    assert which_loop(model, source, num_beams=2)[0] == which_loop(model, source)[0] == "ours"
    unusual = [
        {"do_sample": True},
        {"output_scores": True, "return_dict_in_generate": True},
        {"output_attentions": True, "return_dict_in_generate": True},
        {"return_dict_in_generate": True},
        {"repetition_penalty": 1.5},
        {"no_repeat_ngram_size": 2},
        {"bad_words_ids": [[5]]},
        {"prefix_allowed_tokens_fn": lambda row, ids: list(range(31))},
        {"stopping_criteria": [Never()]},
        {"cache_implementation": "static"},
        {"use_cache": False},
        {"decoder_input_ids": torch.tensor([[PAD, 5]] * 4)},
        {"logits_processor": [lambda ids, scores: scores]},
    ]
    for options in unusual:
        for beams in (1, 2):
            assert which_loop(model, source, num_beams=beams, **options)[0] == "theirs", options
    for options in ({"early_stopping": True}, {"length_penalty_type": "length"}, {"num_beams": 10}):
        assert which_loop(model, source, **{"num_beams": 2, **options})[0] == "theirs", options

    seen = []
    layer = model.model.decoder.layers[-1]
    for part in (model.model, model.model.decoder, model.lm_head, layer, layer.self_attn, layer.encoder_attn):
        hook = part.register_forward_hook(lambda *a: seen.append(1))
        assert which_loop(model, source, num_beams=2)[0] == "theirs" and seen
        hook.remove()
        seen.clear()
    model.forward = model.forward  # what torch.compile(model.forward) leaves behind
    assert which_loop(model, source)[0] == "theirs"
    del model.forward
    model.train()
    assert which_loop(model, source)[0] == "theirs"


@pytest.mark.parametrize("beams", [1, 3])
def test_a_limit_of_no_token_is_one_token(translator, which_loop, beams):
    source = torch.tensor([[PAD, PAD, PAD], [5, 6, EOS], [7, EOS, PAD]])
    for rows in (source, source[:1]):
        options = {"attention_mask": rows.ne(PAD).long(), "num_beams": beams, "max_length_offset": 0}
        (loop, ours), (_, theirs) = (which_loop(translator(), rows, **options, **kind) for kind in (OURS, THEIRS))
        ours, theirs = ours.sequences, theirs.sequences
        assert loop == "ours" and ours.shape == theirs.shape and torch.equal(ours[1:], theirs[1:])
        assert (ours[0, 2:] <= EOS).all()  # which token it is does not matter: there is nothing to attend to


@pytest.mark.parametrize("beams", [1, 4])
def test_outputs_can_be_trained_on(translator, beams):
    """The search runs in inference mode, whose own tensors autograd refuses."""
    model, ids = translator(), next(batches(3, 3))
    output = model.generate(ids, num_beams=beams, **OURS)
    weights = torch.ones(len(ids), requires_grad=True)
    loss = model(ids, decoder_input_ids=output.sequences).logits.mean() + (weights * output.sequences_scores).sum()
    loss.backward()
    assert weights.grad.equal(output.sequences_scores) and model.lm_head.weight.grad.norm() > 0


def test_sequence_scores_can_be_had_from_both_loops(translator):
    model, source = translator(), next(batches(10, 10))
    options = {"num_beams": 3, **OURS}
    ours, theirs = model.generate(source, **options), model.generate(source, **options, no_repeat_ngram_size=30)
    torch.testing.assert_close(ours.sequences_scores, theirs.sequences_scores, rtol=1e-5, atol=1e-5)


def test_a_sentence_does_not_see_its_neighbours(translator):
    """They leave the batch at different times; whatever stays must stay itself."""
    model, source = translator(), torch.cat([*batches(24, 24)])
    together = model.generate(source, num_beams=4)
    for row, alone in zip(source, together, strict=True):
        found = model.generate(row[row != PAD][None], num_beams=4)[0]
        assert found.tolist() == alone[: len(found)].tolist() and set(alone[len(found) :].tolist()) <= {EOS}


def test_hooks_of_layers_and_weights_that_change_are_seen(translator):
    model, source, seen = translator(), next(batches(8, 8)), []
    before = model.generate(source, num_beams=2)
    hook = model.model.decoder.layers[0].self_attn.q_proj.register_forward_hook(lambda *a: seen.append(1))
    model.generate(source, num_beams=2)
    hook.remove()
    assert seen
    model.lm_head.weight.data[7:12] *= -1  # neither a version counter nor a pointer tells
    assert model.generate(source, num_beams=2).tolist() != before.tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(translator, dtype):
    model, source = translator("eager").to(dtype), next(batches(50, 50))
    ours = model.generate(source, num_beams=4, **OURS).sequences
    theirs = model.generate(source, num_beams=4, **THEIRS).sequences
    same = sum(
        a.tolist()[: b.tolist().index(EOS)] == b.tolist()[: b.tolist().index(EOS)]
        for a, b in zip(ours, theirs, strict=True)
    )
    assert same == 50 if dtype == torch.float64 else same >= 40


def test_autocast(translator):
    model, source = translator("eager"), next(batches(50, 50))
    plain = model.generate(source, num_beams=4)
    with torch.autocast("cpu", torch.bfloat16):
        cast = model.generate(source, num_beams=4)
    width = min(plain.shape[1], cast.shape[1])
    assert (plain[:, :width] == cast[:, :width]).all(1).float().mean() > 0.7


@pytest.mark.parametrize("vocabulary", [31, 1000, 1024, 2500])
def test_best_continuations_are_the_best_of_all(vocabulary):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(3, 4, vocabulary, generator=generator)
    scores = torch.randn(3, 4, generator=generator)
    logits[..., 7] = 20.0  # forbidden, and the likeliest
    expected = logits.log_softmax(-1) + scores[..., None]
    expected[..., [2, 7]] = -float("inf")
    for count in (1, 2, 8):
        best, parents, tokens = best_continuations(logits.clone(), scores, [2, 7], count)
        found = expected.flatten(1).topk(count)
        torch.testing.assert_close(best, found.values)
        assert torch.equal(parents * vocabulary + tokens, found.indices)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [20, 3000])
def test_best_continuations_of_dead_hypotheses_and_of_few_tokens(dtype, vocabulary):
    logits = torch.full((2, 3, vocabulary), -float("inf"))
    logits[..., [2, 4, vocabulary - 1]] = torch.tensor([9.0, 1.0, 2.0])  # the first is forbidden
    scores = torch.tensor([[0.5, -float("inf"), 0.0]]).repeat(2, 1)
    best, parents, tokens = best_continuations(logits.to(dtype), scores, [2], 8)
    expected = torch.tensor([9.0, 1.0, 2.0]).log_softmax(-1)
    torch.testing.assert_close(best[:, :4], (expected[[2, 2, 1, 1]] + torch.tensor([0.5, 0, 0.5, 0])).expand(2, 4))
    assert parents[0, :4].tolist() == [0, 2, 0, 2] and tokens[1, :4].tolist() == [vocabulary - 1] * 2 + [4] * 2
    assert best[:, 4:].isneginf().all()  # and not a small number that could end


@pytest.mark.parametrize("vocabulary", [31, 3000])
@pytest.mark.parametrize("limit", [1, 2, 5])
@pytest.mark.parametrize("n_best", [1, 4])
def test_an_output_is_found_where_hardly_a_token_can_be_generated(which_loop, tiny_model, vocabulary, limit, n_best):
    """Fewer than the 2K candidates: ends that are none must not keep out the output that its limit cuts off."""
    model, source = tiny_model(vocab_size=vocabulary), torch.tensor([[4, 6, EOS]])
    model.lm_head = torch.nn.Linear(model.config.d_model, vocabulary)
    model.lm_head.bias.data.fill_(-float("inf"))[5] = 0.0
    options = {"num_beams": 4, "num_return_sequences": n_best, "max_new_tokens": limit}
    for loop, wanted in (("ours", OURS), ("theirs", THEIRS | {"output_scores": True})):
        which, found = which_loop(model, source, **options, **wanted)
        assert which == loop and found.sequences[0].tolist() == [PAD] + [5] * limit
        torch.testing.assert_close(found.sequences_scores, torch.tensor([0.0] + [-1e9] * (n_best - 1)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [True, False])
def test_attention_by_parts_is_that_of_torch(translator, dtype, masked, monkeypatch):
    torch.manual_seed(0)
    attention = translator().get_decoder().layers[0].self_attn
    queries, keys, values = (torch.randn(FEW + 1, attention.config.num_heads, n, 8).to(dtype) for n in (3, 7, 7))
    attention.d_k, queries, mask = 8, queries.transpose(1, 2).flatten(2), None
    if masked:
        mask = torch.randn(FEW + 1, 1, 3, 7).where(torch.rand(FEW + 1, 1, 3, 7) > 0.3, -1e9).to(dtype)

    def attended() -> torch.Tensor:
        return attend(attention, queries, keys, values, mask if mask is None else mask.to(mask_type(queries)))

    ours = attended()
    assert mask_type(queries) == torch.float32 and ours.dtype == dtype
    monkeypatch.setattr(search_vaswani, "FEW", FEW + 1)
    assert mask_type(queries) == dtype
    rounding = {"atol": 0.01, "rtol": 0.016} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(ours, attended(), **rounding)


def test_a_layer_holds_the_keys_and_values_it_was_given(translator):
    decoder = translator().get_decoder()
    layer, given = Layer(decoder.layers[0], torch.randn(2, 5, decoder.config.d_model)), torch.randn(2, 3, 100, 4)
    for i in range(0, 100, 4):
        room = -(-(i + 4) // ROOM) * ROOM
        keys, values = layer.grown(room, given[:, :, i : i + 4], -given[:, :, i : i + 4])
        assert torch.equal(keys[:, :, : i + 4], given[:, :, : i + 4]) and torch.equal(values, -keys)
        assert keys.shape[2] == room and keys.is_contiguous()
    layer.keep(torch.tensor([1]))
    assert torch.equal(layer.grown(room + 1, given[1:, :, :1], given[1:, :, :1])[0][:, :, :100], given[1:])
