"""What a run has scored."""

import json
from pathlib import Path

import pytest

from vaswani.results import entry, put, read, run_of, weights_of
from vaswani.run_config import UserError
from vaswani.scoring import score_all

LAST = {"weights": "last"}


def scored(name: str = "test", weights: dict = LAST, beams: int = 4, translation: str = "a b c d") -> dict:
    scores = score_all([translation], ["a b c d e"], "en")
    return entry({"set": name, "split": "test"}, weights, {"num_beams": beams}, scores, 1, 3.5)


def test_an_entry_takes_the_place_of_its_like_alone(tmp_path):
    assert read(tmp_path) == {"scores": []}
    put(tmp_path, scored(), step=10, best_step=5)
    for other in (scored("other"), scored(beams=1), scored(weights={"weights": "step 5", "checkpoints": ["step_5"]})):
        put(tmp_path, other)
    put(tmp_path, scored(translation="a b c d e"))
    record = read(tmp_path)
    assert (record["step"], record["best_step"], len(record["scores"])) == (10, 5, 4)
    assert record["scores"][-1] == scored(translation="a b c d e")
    assert record["scores"][-1]["scores"]["sacrebleu"]["score"] == pytest.approx(100)
    put(tmp_path, scored(), step=10, best_step=5)  # the same command again: nothing is lost
    assert len(read(tmp_path)["scores"]) == 4
    put(tmp_path, scored(), step=20, best_step=20)  # trained further: the other scores are of another model
    assert read(tmp_path) == {"scores": [scored()], "step": 20, "best_step": 20}


def test_a_damaged_record_is_named(tmp_path):
    (tmp_path / "results.json").write_text('{"scores": [')
    with pytest.raises(UserError, match=r"results.json is damaged: delete it"):
        read(tmp_path)


def test_whose_weights_they_are(tmp_path):
    run = tmp_path / "run"
    for name in ("averaged", "checkpoints/step_500", "checkpoints/step_1000"):
        (run / name).mkdir(parents=True)
    (run / "config.yaml").touch()
    record = {"run": "run", "checkpoints": ["step_500", "step_1000"]}
    (run / "averaged" / "averaged_from.json").write_text(json.dumps(record))
    assert weights_of(str(run)) == LAST
    assert weights_of(str(run / "averaged")) == {
        "weights": "average of steps 500, 1,000", "checkpoints": ["step_500", "step_1000"]
    }  # fmt: skip
    assert weights_of(str(run / "checkpoints" / "step_1000"))["weights"] == "step 1,000"
    for folder in (run, run / "averaged", run / "checkpoints" / "step_1000"):
        assert run_of(str(folder)) == run
    assert run_of(str(Path("some") / "model")) is None
