import datasets
import pytest
import torch
from transformers import pipeline

from vaswani import VaswaniConfig, VaswaniForSeq2SeqLM, VaswaniTranslationPipeline
from vaswani.pipeline_vaswani import split_sentences
from vaswani.tokenization_vaswani import train_tokenizer

SENTENCES = ["The man reads a book.", "", "Two dogs run.", "It rains in the city and the dogs run home.", "A house."]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = VaswaniForSeq2SeqLM(VaswaniConfig(vocab_size=290, d_model=32, d_ff=48, num_layers=2, num_heads=4)).eval()
    torch.nn.init.normal_(model.lm_head.weight, std=0.4)
    for layer in model.model.decoder.layers:  # a random model hardly looks at its source: make it
        layer.encoder_attn.out_proj.weight.data *= 20
    return model


@pytest.fixture(scope="module")
def pipe(model):
    return VaswaniTranslationPipeline(model, train_tokenizer(SENTENCES * 3, 290), device="cpu", max_new_tokens=8)


def texts(results):
    return [result["translation_text"] for result in results]


def test_a_string_a_list_a_column_a_generator(pipe):
    expected = [texts(pipe(sentence))[0] for sentence in SENTENCES]
    assert len(set(expected)) >= 4 and expected[1] == ""
    column = datasets.Dataset.from_dict({"en": SENTENCES})["en"]
    for inputs in (SENTENCES, tuple(SENTENCES), column, (sentence for sentence in SENTENCES)):
        assert texts(pipe(inputs)) == expected
    assert texts(pipe(SENTENCES, max_tokens=1)) == expected
    assert texts(pipe(SENTENCES * 200)) == expected * 200  # a thousand
    assert pipe([]) == [] and pipe("") == [{"translation_text": ""}]


@pytest.mark.parametrize("text", ["👩‍👩‍👧‍👦 🎉", "漢字", " \t ", "x" * 10_000, "a\nb", "</s> <pad>"])
def test_any_text(pipe, text):
    ((result,)) = pipe(text)
    assert isinstance(result["translation_text"], str)


def test_generation_options_at_both_places(pipe, model):
    long = VaswaniTranslationPipeline(model, pipe.tokenizer, device="cpu", num_beams=2, max_new_tokens=3)
    ids = model.generate(**pipe.tokenizer(SENTENCES[0], return_tensors="pt"), num_beams=2, max_new_tokens=3)
    assert texts(long(SENTENCES[0])) == pipe.tokenizer.batch_decode(ids, skip_special_tokens=True)
    ids = model.generate(**pipe.tokenizer(SENTENCES[0], return_tensors="pt"), num_beams=2, max_new_tokens=6)
    assert texts(long(SENTENCES[0], max_new_tokens=6)) == pipe.tokenizer.batch_decode(ids, skip_special_tokens=True)
    torch.manual_seed(1)
    sampled = texts(pipe(SENTENCES[:1] * 5, do_sample=True, temperature=3.0))
    assert len(set(sampled)) > 1


def test_n_best_lists(pipe):
    several = pipe(SENTENCES, num_beams=4, num_return_sequences=3, return_scores=True)
    assert len(several) == len(SENTENCES) and several[1] == [{"translation_text": "", "score": 0.0}]
    for results in several:
        scores = [result["score"] for result in results]
        assert 1 <= len(results) <= 3 and scores == sorted(scores, reverse=True) and min(scores) > -1e8
    assert [results[0]["translation_text"] for results in several] == texts(pipe(SENTENCES, num_beams=4))
    assert pipe(["", " "], num_beams=4, num_return_sequences=2) == [[{"translation_text": ""}]] * 2  # always lists then
    one = pipe(SENTENCES[0], num_beams=4, num_return_sequences=3)
    assert isinstance(one, list) and texts(one) == texts(several[0])


@pytest.mark.parametrize("beams", [1, 3])
def test_scores_are_log_probabilities(pipe, model, beams):
    """Recomputed from one pass over the output: their sum (greedy), over the length penalty (beams)."""
    sources = [SENTENCES[0], SENTENCES[3]]
    results = pipe(sources, num_beams=beams, length_penalty=0.6, return_scores=True)
    for source, result in zip(sources, results, strict=True):
        batch = pipe.tokenizer(source, return_tensors="pt")
        ids = model.generate(**batch, num_beams=beams, length_penalty=0.6, max_new_tokens=8)[0]
        target = ids[1 : 1 + [*ids.tolist()[1:], 1].index(1) + 1]
        with torch.no_grad():
            logits = model(**batch, decoder_input_ids=ids[None, : len(target)]).logits[0]
        if beams == 1:  # transformers normalises over what may be generated there
            logits[:, 0] = -float("inf")
        total = torch.log_softmax(logits, -1)[range(len(target)), target].sum().item()
        expected = total if beams == 1 else total / ((5 + len(target)) / 6) ** 0.6
        assert result["score"] == pytest.approx(expected, abs=1e-4)


def test_attentions(pipe, model):
    results = pipe([SENTENCES[0], SENTENCES[3]], return_attentions=True, num_beams=2)
    for source, result in zip([SENTENCES[0], SENTENCES[3]], results, strict=True):
        weights = result["cross_attentions"]
        assert weights.shape == (2, 4, len(result["target_tokens"]), len(result["source_tokens"]))
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        assert "".join(result["source_tokens"]) == source + "</s>"
        assert "".join(result["target_tokens"]).removesuffix("</s>") == result["translation_text"]
    alone = pipe(SENTENCES[0], return_attentions=True, num_beams=2)[0]["cross_attentions"]
    torch.testing.assert_close(alone, results[0]["cross_attentions"])
    assert model.config._attn_implementation == "sdpa"  # as before
    with pytest.raises(ValueError, match="leave out num_return_sequences"):
        pipe(SENTENCES[0], return_attentions=True, num_beams=2, num_return_sequences=2)


def test_memory_holds_no_scores_that_nobody_asked_for(pipe, model, monkeypatch):
    seen = []
    original = type(model).generate
    monkeypatch.setattr(type(model), "generate", lambda self, *a, **k: seen.append(k) or original(self, *a, **k))
    pipe(SENTENCES[:1])
    pipe(SENTENCES[:1], return_scores=True)
    assert not any("output_scores" in options for options in seen)
    assert [options.get("output_sequences_scores", False) for options in seen] == [False, True]
    assert pipe(SENTENCES[:1], output_scores=True, return_dict_in_generate=False) == pipe(SENTENCES[:1])


def test_split_sentences(pipe):
    text = 'He said: "Stop!" Then he left... and came back. It cost 3.50 dollars, e.g. there.\n\nThe end'
    parts = split_sentences(text)
    assert parts[::2] == [
        'He said: "Stop!"',
        "Then he left... and came back.",
        "It cost 3.50 dollars, e.g. there.",
        "The end",
    ]
    assert "".join(parts) == text
    assert split_sentences("") == [""] and split_sentences("No end") == ["No end"]
    whole = pipe("Two dogs run. A house.", split_sentences=True)
    assert texts(whole) == [" ".join(texts(pipe(["Two dogs run.", "A house."])))]
    assert texts(pipe("Two dogs run. A house.")) != texts(whole)
    with pytest.raises(ValueError, match="gives text alone"):
        pipe("A. B.", split_sentences=True, return_scores=True)


def test_errors(pipe):
    with pytest.raises(TypeError, match="input 2 is a int"):
        pipe(["fine", 3])
    with pytest.raises(ValueError, match="sentence 1 holds a lone surrogate"):
        pipe("\udc80")
    with pytest.raises(ValueError, match="no_such_option"):
        pipe("A house.", no_such_option=1)


def test_registered_with_transformers(pipe, model, tmp_path):
    for part in (model, pipe.tokenizer):
        part.save_pretrained(tmp_path)
    loaded = pipeline("vaswani-translation", model=str(tmp_path), device="cpu", max_new_tokens=8)
    assert type(loaded) is VaswaniTranslationPipeline
    assert texts(loaded(SENTENCES)) == texts(pipe(SENTENCES))
