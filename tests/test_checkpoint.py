import json
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from load_script import load_script
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from vaswani import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani.checkpoint import average, checkpoints, load_checkpoint, save_checkpoint
from vaswani.optim import adam, set_rate
from vaswani.run_config import UserError
from vaswani.tokenization_vaswani import train_tokenizer

TOKENIZER = train_tokenizer(["a b c d e f g"], 300)


def new_model(seed: int = 0, **options) -> VaswaniForSeq2SeqLM:
    torch.manual_seed(seed)
    sizes = {"vocab_size": 263, "d_model": 8, "d_ff": 12, "num_layers": 1, "num_heads": 2}
    return VaswaniForSeq2SeqLM(VaswaniConfig(**sizes | options))


@pytest.fixture
def accelerator():
    AcceleratorState._reset_state(reset_partial_state=True)
    return Accelerator(cpu=True)


def step(model, optimizer, seed: int) -> None:
    ids = torch.randint(2, 263, (3, 5), generator=torch.Generator().manual_seed(seed))
    model(input_ids=ids, labels=ids).loss.backward()
    set_rate(optimizer, 0.01)
    optimizer.step()
    optimizer.zero_grad()


def test_what_is_restored_goes_on_as_before(accelerator, tmp_path):
    model, optimizer = accelerator.prepare(new_model().train(), adam(new_model().parameters()))
    optimizer = accelerator.prepare(adam(model.parameters()))
    for i in range(3):
        step(model, optimizer, i)
    state = {"step": 3, "epoch": 1, "batch": 2}
    folder = save_checkpoint(tmp_path, accelerator, model, optimizer, TOKENIZER, state, keep=2)
    expected_random = torch.rand(4)
    step(model, optimizer, 7)

    other = accelerator.prepare(new_model(seed=5).train())
    other_optimizer = accelerator.prepare(adam(other.parameters()))
    assert load_checkpoint(folder, accelerator, other, other_optimizer) == state
    assert torch.equal(torch.rand(4), expected_random)
    load_checkpoint(folder, accelerator, other, other_optimizer)
    torch.rand(4)
    step(other, other_optimizer, 7)
    for (name, a), (_, b) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    assert other.lm_head.weight is other.model.shared.weight
    assert not list(tmp_path.rglob("*.bin")) and not list(tmp_path.rglob("*.pt"))  # no pickles


def test_a_checkpoint_is_whole_or_absent_and_only_some_are_kept(accelerator, tmp_path):
    model, optimizer = new_model(), adam(new_model().parameters())
    for number in (5, 10, 100):
        save_checkpoint(tmp_path, accelerator, model, optimizer, TOKENIZER, {"step": number}, keep=2)
    assert [folder.name for folder in checkpoints(tmp_path)] == ["step_10", "step_100"]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step_10", "step_100"]
    (tmp_path / "checkpoints" / "step_200").mkdir()  # not one of ours, or damaged
    (tmp_path / "checkpoints" / ".step_300").mkdir()  # was being written
    assert checkpoints(tmp_path)[-1].name == "step_100"
    folder = checkpoints(tmp_path)[-1]
    assert isinstance(AutoModelForSeq2SeqLM.from_pretrained(folder), VaswaniForSeq2SeqLM)
    assert AutoTokenizer.from_pretrained(folder)("a b").input_ids == TOKENIZER("a b").input_ids


@pytest.fixture
def run(accelerator, tmp_path) -> Path:
    for number in range(1, 7):
        model = new_model(seed=number)
        state = {"step": 100 * number}
        save_checkpoint(tmp_path / "run", accelerator, model, adam(model.parameters()), TOKENIZER, state, keep=9)
    return tmp_path / "run"


def test_average_is_the_mean_of_each_weight(run):
    model = average(checkpoints(run)[-3:])
    three = [new_model(seed=number) for number in (4, 5, 6)]
    for name, weight in model.named_parameters():
        mean = torch.stack([dict(m.named_parameters())[name].double() for m in three]).mean(0)
        torch.testing.assert_close(weight.double(), mean, rtol=0, atol=1e-7)
    assert model.lm_head.weight is model.model.shared.weight is model.model.encoder.embed_tokens.weight
    assert average(checkpoints(run)[:1]).dtype == torch.float32


def test_unequal_models_are_refused(run, tmp_path):
    new_model(d_ff=16).save_pretrained(tmp_path / "other")
    with pytest.raises(UserError, match=r"differs from .* in d_ff: average checkpoints of one run"):
        average([checkpoints(run)[0], tmp_path / "other"])
    with pytest.raises(UserError, match="nothing to average"):
        average([])
    (checkpoints(run)[1] / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError):
        average(checkpoints(run)[:2])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--last", "2"], ["step_500", "step_600"]),
        (["--last", "2", "--every", "200"], ["step_400", "step_600"]),
        (["--steps", "100", "300"], ["step_100", "step_300"]),
    ],
)
def test_script(run, options, expected, capsys):
    assert load_script("average_checkpoints").main([str(run), *options]) == 0
    record = json.loads((run / "averaged" / "averaged_from.json").read_text())
    assert record["checkpoints"] == expected
    loaded = AutoModelForSeq2SeqLM.from_pretrained(run / "averaged")
    mean = average([run / "checkpoints" / name for name in expected])
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), mean.parameters(), strict=True))
    assert loaded.lm_head.weight is loaded.model.shared.weight
    assert len(AutoTokenizer.from_pretrained(run / "averaged")) == len(TOKENIZER)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--last", "9"], "--last 9 of 6 checkpoints"),
        (["--last", "0"], "--last 0 of 6"),
        (["--steps", "150"], "no checkpoint of step 150; it has 100, 200"),
    ],
)
def test_script_errors(run, options, message, capsys):
    assert load_script("average_checkpoints").main([str(run), *options]) == 2
    assert message in capsys.readouterr().err
    (run / "thesis").mkdir()
    (run / "thesis" / "config.json").write_text("precious")
    assert load_script("average_checkpoints").main([str(run), "--last", "1", "--output", str(run / "thesis")]) == 2
    assert "holds something else than an earlier average" in capsys.readouterr().err
    assert (run / "thesis" / "config.json").read_text() == "precious"
    assert load_script("average_checkpoints").main([str(run), "--last", "1", "--output", "/proc/nowhere"]) == 2
    assert load_script("average_checkpoints").main([str(run / "nothing"), "--last", "1"]) == 2
    assert "has no checkpoints" in capsys.readouterr().err
