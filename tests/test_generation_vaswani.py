"""The search of section 6.1 against a plain-Python one, written from the description of tensor2tensor's."""

import itertools
import math

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, GenerationConfig

from vaswani import VaswaniConfig, VaswaniForSeq2SeqLM

PAD, EOS, V = 0, 1, 12


def reference_search(beam: int, alpha: float, limit: int, n_best: int):
    """Beam search for one sentence: yields the prefixes it must know more of and is sent their log-probabilities.

    Of the 2 * beam best continuations those with EOS join the finished, the others stay alive, the best `beam` of both. It
    ends when the best alive one, divided by the penalty of the full length, is below the finished one to beat.
    """
    alive, finished = [(0.0, ())], []
    for step in range(limit):
        rows = yield [tokens for _, tokens in alive]
        continued = [
            (score + float(row[v]), (*tokens, v))
            for (score, tokens), row in zip(alive, rows, strict=True)
            for v in range(V)
        ]
        best = sorted(continued, key=lambda c: -c[0])[: 2 * beam]
        penalty = ((5 + step + 1) / 6) ** alpha
        finished += [(score / penalty, tokens) for score, tokens in best if tokens[-1] == EOS]
        finished = sorted(finished, key=lambda c: -c[0])[:beam]
        alive = [c for c in best if c[1][-1] != EOS][:beam]
        bound = alive[0][0] / ((5 + limit) / 6) ** alpha
        if finished and finished[0 if n_best == 1 else -1][0] > bound:
            break
    return (finished or [(score / penalty, tokens) for score, tokens in alive])[:n_best]


@torch.no_grad()
def run_references(model, sources: list[list[int]], **options) -> list[list[tuple[float, tuple]]]:
    """All sentences in step: every prefix that some search asks for goes through the model together, without a cache."""
    limits = [len(source) + options["offset"] for source in sources]
    searches = [reference_search(options["beam"], options["alpha"], limit, options["n_best"]) for limit in limits]
    source, mask = pad(sources)
    encoded = model.model.encoder(source, mask).last_hidden_state
    results, wanted = {}, {i: next(search) for i, search in enumerate(searches)}
    while wanted:
        owner = torch.tensor([i for i, prefixes in wanted.items() for _ in prefixes])
        prefixes = torch.tensor([(PAD, *tokens) for prefixes in wanted.values() for tokens in prefixes])
        logits = model(
            encoder_outputs=(encoded[owner],), attention_mask=mask[owner], decoder_input_ids=prefixes, use_cache=False
        ).logits[:, -1]
        rows = torch.log_softmax(logits.float(), dim=-1)
        rows[:, PAD] = -math.inf
        asked, wanted, start = wanted, {}, 0
        for i, prefixes_of in asked.items():
            try:
                wanted[i] = searches[i].send(rows[start : start + len(prefixes_of)])
            except StopIteration as stop:
                results[i] = stop.value
            start += len(prefixes_of)
    return [results[i] for i in range(len(sources))]


def pad(sources: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    rows = [torch.tensor(source) for source in sources]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    return ids, ids.ne(PAD).long()


def generate(model, sources, batch_size: int, **options) -> list[list[tuple[float, tuple]]]:
    """What our `generate()` returns, in the reference's form; empty places of an n-best list are left out."""
    results, n_best = [], options.get("num_return_sequences", 1)
    for start in range(0, len(sources), batch_size):
        ids, mask = pad(sources[start : start + batch_size])
        out = model.generate(ids, attention_mask=mask, return_dict_in_generate=True, output_scores=True, **options)
        hypotheses = []  # transformers fills up with EOS where the padding id is 0: what a limit cut off ends there
        limits = mask.sum(1) + options["max_length_offset"] if "max_length_offset" in options else mask.sum(1) * 0 + 99
        rows = [
            row[:limit]
            for row, limit in zip(out.sequences[:, 1:].tolist(), limits.repeat_interleave(n_best), strict=True)
        ]
        for row, score in zip(rows, out.sequences_scores.tolist(), strict=True):
            hypotheses.append((score, tuple(row[: row.index(EOS) + 1] if EOS in row else row)))
        for i in range(0, len(hypotheses), n_best):
            results.append([h for h in hypotheses[i : i + n_best] if h[0] > -1e8])
    return results


def assert_same(ours, theirs):
    for mine, other in zip(ours, theirs, strict=True):
        assert [tokens for _, tokens in mine] == [tokens for _, tokens in other]
        assert [score for score, _ in mine] == pytest.approx([score for score, _ in other], abs=1e-5)


def toy_model(seed: int = 0, sharpness: float = 0.6) -> VaswaniForSeq2SeqLM:
    torch.manual_seed(seed)
    model = VaswaniForSeq2SeqLM(VaswaniConfig(vocab_size=V, d_model=16, d_ff=32, num_layers=1, num_heads=2)).eval()
    torch.nn.init.normal_(model.lm_head.weight, std=sharpness)
    return model


def sentences(count: int, seed: int = 0, longest: int = 9) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (count,), generator=generator).tolist()
    return [[*torch.randint(2, V, (n,), generator=generator).tolist(), EOS] for n in lengths]


@pytest.mark.parametrize(("n_best", "batch_size", "count"), [(1, 16, 1000), (4, 16, 1000), (1, 1, 60), (4, 1, 60)])
def test_equals_the_reference_search(n_best, batch_size, count):
    model, sources = toy_model(), sentences(count)
    options = {"beam": 4, "alpha": 0.6, "offset": 6, "n_best": n_best}
    theirs = run_references(model, sources, **options)
    ours = generate(
        model, sources, batch_size, num_beams=4, length_penalty=0.6, max_length_offset=6, num_return_sequences=n_best
    )
    assert_same(ours, theirs)
    best = [hypotheses[0][1] for hypotheses in theirs]
    ended = (
        sum(tokens[-1] == EOS for tokens in best) / count
    )  # the test sees searches that end and ones that are cut off
    assert 0.5 < ended <= 1
    assert len(set(map(len, best))) > 5


@pytest.mark.parametrize(("alpha", "seed", "sharpness"), [(0.0, 1, 0.3), (1.0, 2, 0.9), (0.6, 3, 0.2), (2.0, 4, 0.5)])
def test_equals_the_reference_for_other_models(alpha, seed, sharpness):
    model, sources = toy_model(seed, sharpness), sentences(80, seed)
    theirs = run_references(model, sources, beam=3, alpha=alpha, offset=4, n_best=1)
    assert_same(generate(model, sources, 16, num_beams=3, length_penalty=alpha, max_length_offset=4), theirs)


def test_hypotheses_cut_off_are_the_result_where_nothing_ends():
    model, sources = toy_model(5), sentences(12, longest=3)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    hidden = model.model(pad(sources)[0], decoder_input_ids=torch.zeros(12, 1, dtype=torch.long)).last_hidden_state
    model.lm_head.weight.data[EOS] = -40 * hidden.mean((0, 1)) / hidden.mean((0, 1)).norm()
    theirs = run_references(model, sources, beam=4, alpha=0.6, offset=2, n_best=1)
    assert any(EOS not in hypotheses[0][1] for hypotheses in theirs)
    assert_same(generate(model, sources, 6, num_beams=4, length_penalty=0.6, max_length_offset=2), theirs)


def test_brute_force_over_a_small_vocabulary():
    """With a beam that holds everything the search finds the best of all outputs up to the limit."""
    torch.manual_seed(0)
    model = VaswaniForSeq2SeqLM(VaswaniConfig(vocab_size=5, d_model=16, d_ff=16, num_layers=1, num_heads=2)).eval()
    torch.nn.init.normal_(model.lm_head.weight, std=0.7)
    limit = 4
    outputs = [(*body, EOS) for n in range(limit) for body in itertools.product((2, 3, 4), repeat=n)]
    for source in ([2, EOS], [3, 4, EOS], [4, 4, 2, EOS], [2, 3, EOS]):
        scored = []
        for output in outputs:
            logits = model(torch.tensor([source]), decoder_input_ids=torch.tensor([(PAD, *output[:-1])])).logits[0]
            total = torch.log_softmax(logits, -1)[range(len(output)), output].sum().item()
            scored.append((total / ((5 + len(output)) / 6) ** 0.6, output))
        best = max(scored)
        ((found,),) = generate(model, [source], 1, num_beams=60, length_penalty=0.6, max_new_tokens=limit)
        assert found[1] == best[1] and found[0] == pytest.approx(best[0], abs=1e-5)


def test_a_beam_of_one_is_greedy():
    model, sources = toy_model(), sentences(50)
    (theirs) = run_references(model, sources, beam=1, alpha=0.6, offset=6, n_best=1)
    ids, mask = pad(sources)
    greedy = model.generate(ids, attention_mask=mask, num_beams=1, max_length_offset=6)
    for row, source, ((_, tokens),) in zip(greedy[:, 1:].tolist(), sources, theirs, strict=True):
        row = row[: row.index(EOS) + 1] if EOS in row else row[: len(source) + 6]
        chosen = []
        for token in row:  # greedy never looks back; the reference may have finished a shorter output before
            chosen.append(token)
            if token == EOS:
                break
        prefix = len(tokens) - 1
        assert chosen[:prefix] == list(tokens[:prefix])


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"num_beams": 3, "length_penalty_type": "length"}])
def test_batching_changes_nothing(options):
    """Each sentence has its own limit; tensor2tensor's longest-in-batch limit is an option."""
    model, sources = toy_model(6, 0.15), sentences(24, 6)
    ids, mask = pad(sources)
    together = model.generate(ids, attention_mask=mask, max_length_offset=3, **options)
    for row, source in zip(together.tolist(), sources, strict=True):
        alone = model.generate(torch.tensor([source]), max_length_offset=3, **options)[0].tolist()
        assert row[: len(alone)] == alone and set(row[len(alone) :]) <= {PAD, EOS}
        assert len(alone) - 1 <= len(source) + 3
    lengths = (together[:, 1:] > EOS).sum(1)
    assert (lengths == mask.sum(1) + 3).any()  # some outputs do run into their limits
    wide = model.generate(ids, attention_mask=mask, max_length_offset=3, max_length_offset_scope="batch", **options)
    assert ((wide[:, 1:] > EOS).sum(1) > mask.sum(1) + 3).any()


def test_transformers_own_penalty_is_a_choice():
    model, sources = toy_model(), sentences(100)
    theirs = generate(model, sources, 16, num_beams=4, length_penalty=0.6, length_penalty_type="length")
    ours = generate(model, sources, 16, num_beams=4, length_penalty=0.6)
    assert theirs != ours
    for ((score, tokens),) in theirs[:10]:
        assert math.isfinite(score) and tokens


def test_length_arguments_take_the_limits_place():
    model = toy_model(6, 0.1)
    source = torch.tensor([[3, 4, 5, EOS]])
    for options in ({}, {"num_beams": 2}):
        assert model.generate(source, max_new_tokens=70, min_new_tokens=70, **options).shape[1] == 71
        assert model.generate(source, max_length=9, min_length=9, **options).shape[1] == 9
        longest = model.generate(source, min_length=100, generation_config=GenerationConfig(max_length=100), **options)
        assert longest.shape[1] == 100
        assert model.generate(source, min_new_tokens=54, **options).shape[1] == 1 + 4 + 50


def test_settings_survive_saving_and_loading(tmp_path):
    model = toy_model()
    model.generation_config.num_beams, model.generation_config.length_penalty = 4, 0.6
    model.save_pretrained(tmp_path)
    config = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).generation_config
    assert (config.length_penalty_type, config.max_length_offset, config.max_length_offset_scope) == (
        "gnmt",
        50,
        "sentence",
    )
    assert (config.num_beams, config.length_penalty) == (4, 0.6)


def test_a_plain_generation_config_is_transformers_own_search_and_ours_can_be_asked_for():
    model, source = toy_model(), sentences(60)
    options = {"num_beams": 4, "length_penalty": 0.6, "max_new_tokens": 12}
    ours, theirs = (generate(model, source, 16, **options, length_penalty_type=kind) for kind in ("gnmt", "length"))
    model.generation_config = GenerationConfig(pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=PAD)
    assert_same(generate(model, source, 16, **options), theirs)
    assert_same(generate(model, source, 16, **options, length_penalty_type="gnmt"), ours)
    assert ours != theirs
    assert model.generate(torch.tensor([[3, EOS]]), max_length_offset=2, min_length=5).shape[1] == 5


def test_learned_positions_end_where_their_table_does():
    config = VaswaniConfig(
        vocab_size=V,
        d_model=16,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        position_encoding="learned",
        max_position_embeddings=20,
    )
    torch.manual_seed(0)
    model, source = VaswaniForSeq2SeqLM(config).eval(), torch.tensor([[3, 4, EOS]])
    for options in ({}, {"num_beams": 3}, {"cache_implementation": "static"}):
        assert model.generate(source, min_length=20, **options).shape[1] == 20


def test_a_model_without_an_end_token_runs_to_its_limit():
    config = VaswaniConfig(vocab_size=V, d_model=16, d_ff=32, num_layers=1, num_heads=2, eos_token_id=None)
    model = VaswaniForSeq2SeqLM(config).eval()
    for options in ({}, {"num_beams": 3}):
        assert model.generate(torch.tensor([[3, 4, 5]]), **options).shape[1] == 1 + 3 + 50


def test_criteria_of_the_caller_are_kept():
    model, source = toy_model(6, 0.1), torch.tensor([[3, 4, 5, EOS]])

    def four_tokens(ids, scores, **kwargs):
        return torch.full((len(ids),), ids.shape[1] >= 5)

    for options in ({}, {"num_beams": 2}):
        assert model.generate(source, min_new_tokens=20, stopping_criteria=[four_tokens], **options).shape[1] == 5
        assert model.generate(source, None, None, [four_tokens], min_new_tokens=20, **options).shape[1] == 5


def test_bad_choices():
    with pytest.raises(TypeError, match="as a tensor"):
        toy_model().generate([[3, 1]])
    model, source = toy_model(), torch.tensor([[3, EOS]])
    with pytest.raises(ValueError, match="length_penalty_type='wu': choose 'gnmt' or 'length'"):
        model.generate(source, num_beams=2, length_penalty_type="wu")
    with pytest.raises(ValueError, match="max_length_offset_scope='word': choose 'sentence' or 'batch'"):
        model.generate(source, max_length_offset_scope="word")
