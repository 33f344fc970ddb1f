import json
import resource
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from load_script import load_script
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from vaswani import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani.checkpoint import Checkpoints, Progress, average, checkpoints, damage, regular
from vaswani.optim import adam, set_rate
from vaswani.processes import Team
from vaswani.run_config import TrainingConfig, UserError
from vaswani.tokenization_vaswani import train_tokenizer

TOKENIZER = train_tokenizer(["a b c d e f g"], 300)


def new_model(seed: int = 0, **options) -> VaswaniForSeq2SeqLM:
    torch.manual_seed(seed)
    sizes = {"vocab_size": 263, "d_model": 8, "d_ff": 12, "num_layers": 1, "num_heads": 2}
    return VaswaniForSeq2SeqLM(VaswaniConfig(**sizes | options))


CODE = {"commit": "abc", "digest": "123"}


class Training:
    """A model, its optimizer and its checkpoints, as train.py has them."""

    def __init__(self, run: Path, seed: int = 0, code: dict = CODE, **settings):
        AcceleratorState._reset_state(reset_partial_state=True)
        self.accelerator = Accelerator(cpu=True)
        self.model = new_model(seed).train()
        self.optimizer = self.accelerator.prepare(adam(self.model.parameters()))
        self.said: list[str] = []
        self.store = Checkpoints(
            run, self.accelerator, Team(self.accelerator, 10), self.model, self.optimizer, TOKENIZER,
            TrainingConfig(**settings), {"settings": {"d_model": 8}, "code": code}, self.said.append,
        )  # fmt: skip

    def step(self, seed: int) -> None:
        ids = torch.randint(2, 263, (3, 5), generator=torch.Generator().manual_seed(seed))
        self.model(input_ids=ids, labels=ids).loss.backward()
        set_rate(self.optimizer, 0.01)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self, *steps: int, by_stop: tuple[int, ...] = (), **scores: float) -> None:
        for step in steps:
            progress = Progress(step=step, scores={int(key[1:]): score for key, score in scores.items()})
            self.store.save(progress, by_stop=step in by_stop)


def names(run: Path) -> list[str]:
    return sorted((path.name for path in (run / "checkpoints").iterdir()), key=lambda name: (len(name), name))


def test_what_is_restored_goes_on_as_before(tmp_path):
    training = Training(tmp_path)
    for i in range(3):
        training.step(i)
    progress = Progress(step=3, epoch=1, batch=2, target_tokens=77, seconds=1.5, first_nll=5.5, scores={2: 31.5})
    training.store.save(progress)
    expected_random = torch.rand(4)
    training.step(7)

    other = Training(tmp_path, seed=5)
    assert other.store.resume() == progress
    assert torch.equal(torch.rand(4), expected_random)
    other.step(7)
    for (name, a), (_, b) in zip(training.model.named_parameters(), other.model.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    assert other.model.lm_head.weight is other.model.model.shared.weight
    assert other.said == [f"continuing from {tmp_path / 'checkpoints' / 'step_3'}"]
    saved = json.loads((tmp_path / "checkpoints" / "step_3" / "state.json").read_text())
    assert saved["settings"] == {"d_model": 8} and saved["code"] == CODE and saved["processes"] == 1
    suffixes = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert suffixes <= {".safetensors", ".json", ".txt"}  # no pickles


def test_the_scale_of_fp16_is_restored(tmp_path):
    training, other = Training(tmp_path), Training(tmp_path)
    training.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    other.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    training.accelerator.scaler.scale(torch.ones(1))  # the scale exists from its first use
    training.save(1)
    other.store.resume()
    assert other.accelerator.scaler.state_dict() == training.accelerator.scaler.state_dict()
    assert other.accelerator.scaler.get_scale() == 1024.0


def test_a_change_of_code_and_of_processes_is_said(tmp_path):
    Training(tmp_path).save(1)
    state = tmp_path / "checkpoints" / "step_1" / "state.json"
    other = Training(tmp_path, code=CODE | {"commit": "def", "digest": "456"})
    other.store.resume()
    assert "the code has changed since it was saved (abc, 123 -> def, 456)" in other.said[1]
    state.write_text(state.read_text().replace('"processes": 1', '"processes": 4'))
    (state.parent / "checksums.json").write_text("{}")  # nothing is checked
    other.said.clear()
    other.store.resume()
    assert "saved by 4 process(es), continued by 1: the same batches" in other.said[-1]


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"keep_checkpoints": 2}, [50, 60]),
        ({"keep_checkpoints": 1, "keep_best": 2}, [20, 40, 60]),
        ({"keep_checkpoints": 1, "keep_every": 30}, [30, 60]),
        ({"keep_checkpoints": 1, "keep_best": 1, "keep_every": 50}, [20, 50, 60]),
    ],
)
def test_the_newest_the_best_and_spaced_ones_are_kept(tmp_path, settings, kept):
    training = Training(tmp_path, **settings)
    (tmp_path / "checkpoints" / "step_7").mkdir(parents=True)  # not one of ours
    training.save(10, 20, 30, 40, 50, 60, _20=7.0, _25=9.0, _30=3.0, _40=5.0)
    assert [folder.name for folder in checkpoints(tmp_path)] == [f"step_{step}" for step in kept]
    assert names(tmp_path) == ["step_7", *(f"step_{step}" for step in kept)]


@pytest.mark.parametrize(
    ("by_stop", "kept"),
    [((50,), [40, 60]), ((60,), [40, 50, 60]), ((40, 50, 60), [20, 30, 60]), ((10, 20, 30, 40, 50, 60), [50, 60])],
)
def test_what_a_stop_saved_takes_no_place_among_the_newest(tmp_path, by_stop, kept):
    Training(tmp_path, keep_checkpoints=2).save(10, 20, 30, 40, 50, 60, by_stop=by_stop)
    assert [folder.name for folder in checkpoints(tmp_path)] == [f"step_{step}" for step in kept]
    expected = [step for step in kept if step not in by_stop]
    assert [folder.name for folder in regular(checkpoints(tmp_path))] == [f"step_{step}" for step in expected]


def test_a_checkpoint_is_a_model_for_the_auto_classes(tmp_path):
    Training(tmp_path).save(10)
    folder = checkpoints(tmp_path)[-1]
    assert isinstance(AutoModelForSeq2SeqLM.from_pretrained(folder), VaswaniForSeq2SeqLM)
    assert AutoTokenizer.from_pretrained(folder)("a b").input_ids == TOKENIZER("a b").input_ids


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "random.safetensors", "state.json"])
@pytest.mark.parametrize("harm", [cut, flip, Path.unlink])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, file, harm):
    training = Training(tmp_path)
    training.save(1, 2)
    assert damage(checkpoints(tmp_path)[-1]) is None
    harm(tmp_path / "checkpoints" / "step_2" / file)
    (tmp_path / "checkpoints" / ".step_3").mkdir()  # was being written
    other = Training(tmp_path)
    assert other.store.resume().step == 1
    assert not (tmp_path / "checkpoints" / ".step_3").exists()
    if not (file == "state.json" and harm is Path.unlink):  # without it, it never was one
        assert "step_2 is damaged" in other.said[0] and file in other.said[0]
        assert names(tmp_path) == ["step_1", "damaged_step_2"]
    other.save(2)
    assert [folder.name for folder in checkpoints(tmp_path)] == ["step_1", "step_2"]
    assert damage(checkpoints(tmp_path)[-1]) is None


def test_bad_checksums_and_nothing_at_all(tmp_path):
    assert Training(tmp_path).store.resume() == Progress()
    Training(tmp_path).save(1)
    (tmp_path / "checkpoints" / "step_1" / "checksums.json").write_text("[")
    with pytest.raises(
        UserError, match=r"no checkpoint of .* is whole \(of step_1: .*--fresh true"
    ):  # not: from the start
        Training(tmp_path).store.resume()
    assert names(tmp_path) == ["step_1"]


def test_a_full_disk_harms_no_earlier_checkpoint(tmp_path):
    """A limit on the size of files stands for the disk: the operating system refuses to write, as it does when full."""
    training = Training(tmp_path)
    training.save(1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    size = (tmp_path / "checkpoints" / "step_1" / "optimizer.safetensors").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, limits[1]))
    try:
        with pytest.raises(UserError, match=r"cannot save .*step_2 .*make room.*untouched, the newest is .*step_1"):
            training.save(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert names(tmp_path) == ["step_1"]
    training.save(2)
    assert names(tmp_path) == ["step_1", "step_2"]


def test_weights_that_are_no_numbers_are_not_saved(tmp_path):
    training = Training(tmp_path)
    training.save(1)
    with torch.no_grad():
        next(training.model.parameters())[0, 0] = float("inf")
    with pytest.raises(UserError, match="no longer numbers at step 2: lower lr_factor"):
        training.save(2)
    assert names(tmp_path) == ["step_1"]


def test_everything_is_forced_to_disk_before_it_counts(tmp_path, monkeypatch):
    import os

    happened = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor):
        happened.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real_fsync(descriptor)

    def replace(source, target):
        happened.append("renamed")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    Training(tmp_path).save(4)
    files = {path.name for path in (tmp_path / "checkpoints" / "step_4").iterdir()}
    renamed = happened.index("renamed")
    assert files | {".step_4"} == set(happened[:renamed]) and happened[renamed + 1 :] == ["checkpoints"]


@pytest.fixture
def run(tmp_path) -> Path:
    for number in range(1, 7):
        Training(tmp_path / "run", seed=number).save(100 * number)
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
        (["--last", "3"], ["step_400", "step_500", "step_600"]),  # not the one that a stop saved
        (["--steps", "100", "300"], ["step_100", "step_300"]),
    ],
)
def test_script(run, options, expected, capsys):
    Training(run).save(570, by_stop=(570,))
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
        (["--last", "9"], "has 6 checkpoint(s) to average (100, 200, 300, 400, 500, 600), and not --last 9"),
        (["--last", "0"], "and not --last 0"),
        (["--steps", "150"], "no checkpoint of step 150; it has 100, 200"),
    ],
)
def test_script_errors(run, options, message, capsys):
    Training(run).save(570, by_stop=(570,))
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
