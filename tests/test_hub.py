"""A folder that needs no package of ours, and one that needs no code of ours."""

import json
import subprocess
import sys

import pytest
import torch
from load_script import load_script
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianMTModel

from vaswani import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani.hub import save_for_hub
from vaswani.marian_export import to_marian
from vaswani.tokenization_vaswani import train_tokenizer
from vaswani.translation import translate

SENTENCES = ["The man reads a book.", "Two dogs run.", "It rains in the city and the dogs run home.", "A house."]


@pytest.fixture(scope="module")
def model():
    """Random, with a padding row as training leaves it: not zero."""
    torch.manual_seed(0)
    config = VaswaniConfig(vocab_size=300, d_model=32, d_ff=48, num_layers=2, num_decoder_layers=1, num_heads=4)
    model = VaswaniForSeq2SeqLM(config).eval()
    torch.nn.init.normal_(model.lm_head.weight, std=0.4)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 1.0 if parameter.mean() == 1 else 0.0, 0.2)
    model.lm_head.weight.data[0] -= 0.3
    return model


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(SENTENCES * 3, 300)


WITHOUT_PACKAGE = """
import sys, json
sys.modules["vaswani"] = None  # importing it now fails, as where it is not installed
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
folder, sentences = sys.argv[1], json.loads(sys.argv[2])
model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
batch = tokenizer(sentences, return_tensors="pt", padding=True)
direct = tokenizer.batch_decode(model.generate(**batch, num_beams=3, max_new_tokens=8), skip_special_tokens=True)
outputs = [direct]
for options in ({"task": "translation"}, {}):
    pipe = pipeline(**options, model=folder, trust_remote_code=True, device="cpu")
    outputs.append([r["translation_text"] for r in pipe(sentences, num_beams=3, max_new_tokens=8)])
base = AutoModel.from_pretrained(folder, trust_remote_code=True)
print(json.dumps([outputs, type(base).__name__, type(pipe).__name__]))
"""


def test_the_folder_works_without_the_package(model, tokenizer, tmp_path):
    folder = save_for_hub(model, tokenizer, tmp_path / "published")
    command = [sys.executable, "-c", WITHOUT_PACKAGE, str(folder), json.dumps(SENTENCES)]
    environment = {"PATH": "", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    outputs, base, pipe = json.loads(done.stdout.strip().splitlines()[-1])
    assert (base, pipe) == ("VaswaniModel", "VaswaniTranslationPipeline")
    here = translate(model, tokenizer, SENTENCES, num_beams=3, max_new_tokens=8)
    assert outputs == [here] * 3


def test_with_the_package_no_trust_is_needed(model, tokenizer, tmp_path):
    folder = save_for_hub(model, tokenizer, tmp_path)
    again = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert type(again) is VaswaniForSeq2SeqLM
    assert again.generation_config.length_penalty_type == "gnmt"


def marian_inputs(tokenizer):
    batch = tokenizer(SENTENCES, return_tensors="pt", padding=True)
    target = torch.randint(2, 300, (len(SENTENCES), 7), generator=torch.Generator().manual_seed(1))
    target[:, 0] = 0
    return dict(batch), target


def test_marian_layout(model, tokenizer, tmp_path):
    """Saved and loaded by MarianMTModel: the logits of everything but padding, and the translations, are the same."""
    exported = to_marian(model)
    exported.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    marian = MarianMTModel.from_pretrained(tmp_path).eval()
    batch, target = marian_inputs(tokenizer)
    with torch.no_grad():
        ours = model(**batch, decoder_input_ids=target).logits
        theirs = marian(**batch, decoder_input_ids=target).logits
    assert (theirs[..., 0] < -1e8).all() and (ours[..., 0] > -1e3).all()
    # LayerNorm's epsilon is 1e-5 there and 1e-6 here; with ours put in, what is left is rounding
    torch.testing.assert_close(theirs[..., 1:], ours[..., 1:], rtol=0, atol=2e-3)
    for module in marian.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-6
    with torch.no_grad():
        theirs = marian(**batch, decoder_input_ids=target).logits
    torch.testing.assert_close(theirs[..., 1:], ours[..., 1:], rtol=0, atol=2e-5)
    options = {"num_beams": 4, "max_new_tokens": 12, "length_penalty": 1.0}
    mine = model.generate(**batch, **options, length_penalty_type="length")
    other = marian.generate(**batch, **options)
    assert [row.tolist() for row in other] == [row.tolist() for row in mine]
    assert type(AutoModelForSeq2SeqLM.from_pretrained(tmp_path)) is MarianMTModel
    assert AutoTokenizer.from_pretrained(tmp_path)("A house.").input_ids == tokenizer("A house.").input_ids


def test_marian_layout_of_a_trained_model(translator, sentences, tmp_path):
    """Training gives padding a row and a little probability; what the others gain by its loss is all that changes."""
    model, source = translator(), sentences(9, 5, 7, 2)
    assert model.lm_head.weight[0].norm() > 0.01
    to_marian(model).save_pretrained(tmp_path)
    marian = MarianMTModel.from_pretrained(tmp_path).eval()
    ours, theirs = (
        each.generate(source, attention_mask=source.ne(0).long(), num_beams=4, max_new_tokens=12, **options)
        for each, options in ((model, {"length_penalty_type": "length"}), (marian, {}))
    )
    assert [row.tolist() for row in ours] == [row.tolist() for row in theirs]
    with torch.no_grad():
        logits = [each(source, attention_mask=source.ne(0), decoder_input_ids=ours).logits for each in (model, marian)]
    ours, theirs = (x.log_softmax(-1)[..., 1:] for x in logits)
    lost = -torch.log1p(-logits[0].softmax(-1)[..., :1])  # log(1 / (1 - p(pad)))
    torch.testing.assert_close(theirs, ours + lost, rtol=0, atol=1e-3)  # Marian's LayerNorm epsilon
    assert (theirs >= ours - 1e-3).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"position_encoding": "learned"}, "sinusoids only, not position_encoding='learned'"),
        ({"position_encoding": "tensor2tensor"}, "not position_encoding='tensor2tensor'"),
        ({"d_k": 4}, "needs d_k = d_v = d_model / num_heads, not d_k=4 and d_v=8"),
        ({"tie_word_embeddings": False}, "shares one matrix"),
        ({"attention_bias": False}, "has attention biases"),
        ({"layer_norm_eps": 1e-2}, "far from layer_norm_eps=0.01"),
    ],
)
def test_marian_refuses_what_it_cannot_express(options, message):
    config = VaswaniConfig(vocab_size=30, d_model=16, d_ff=16, num_layers=1, num_heads=2, **options)
    with pytest.raises(ValueError, match=message):
        to_marian(VaswaniForSeq2SeqLM(config))


def test_export_script(model, tokenizer, tmp_path, capsys):
    main = load_script("export").main
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "run")
    assert main([str(tmp_path / "run"), str(tmp_path / "m"), "--to", "marian"]) == 0
    assert type(AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "m")) is MarianMTModel
    assert main([str(tmp_path / "run"), str(tmp_path / "h"), "--to", "hub"]) == 0
    assert (tmp_path / "h" / "embedding_vaswani.py").exists()
    capsys.readouterr()
    assert main([str(tmp_path / "run"), str(tmp_path / "h"), "--to", "hub"]) == 2
    assert "exists already" in capsys.readouterr().err
    config = VaswaniConfig(vocab_size=300, d_model=16, d_ff=16, num_layers=1, num_heads=2, position_encoding="learned")
    VaswaniForSeq2SeqLM(config).save_pretrained(tmp_path / "learned")
    tokenizer.save_pretrained(tmp_path / "learned")
    assert main([str(tmp_path / "learned"), str(tmp_path / "x"), "--to", "marian"]) == 2
    assert "sinusoids only" in capsys.readouterr().err and not (tmp_path / "x").exists()
