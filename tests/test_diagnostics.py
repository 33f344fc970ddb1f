import pytest

from vaswani.checkpoint import Progress
from vaswani.diagnostics import all_alike, effective_batch, far_from_plan, ignores_source, stuck
from vaswani.run_config import DataConfig, ModelSettings, RunConfig, TrainingConfig


def plan(world: int = 1, pairs: int = 1000, tokens: int = 30_000, **settings) -> list[str]:
    return far_from_plan(RunConfig("", DataConfig(), ModelSettings(), TrainingConfig(**settings)), pairs, tokens, world)


def test_the_papers_plan_is_fine():
    assert plan(world=8) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_steps": 3999}, "before the learning rate has risen to its peak at step 4,000"),
        ({"lr_factor": 20.0}, "the learning rate rises to 0.014, and the paper's to 0.0007"),
        ({"world": 8, "tokens_per_batch": 200}, "200 target tokens are 6.7 pairs, fewer than the 8 processes"),
    ],
)
def test_far_from_plan(settings, message):
    (warning,) = plan(**settings)
    assert message in warning


def test_effective_batch():
    settings = TrainingConfig(tokens_per_batch=1000)
    assert effective_batch(Progress(step=100, target_tokens=95_000), settings) is None
    assert effective_batch(Progress(step=10, target_tokens=100), settings) is None  # too early to say
    assert "an update has 400 target tokens" in effective_batch(Progress(step=100, target_tokens=40_000), settings)


def test_stuck():
    progress = Progress(step=500, first_nll=9.0)
    assert "the loss does not move: 9.00 at the first step, 8.70 at step 500" in stuck(progress, 8.7, TrainingConfig())
    assert stuck(progress, 8.4, TrainingConfig()) is None
    assert stuck(Progress(step=499, first_nll=9.0), 9.0, TrainingConfig()) is None
    assert stuck(progress, 8.7, TrainingConfig(init_from="some/model")) is None


def test_all_alike():
    sources = [f"sentence {i}" for i in range(20)]
    assert "(19 of 20 are 'the same')" in all_alike(sources, ["the same"] * 19 + ["another"])
    assert all_alike(sources, sources) is None
    assert all_alike(["one"] * 20, ["eins"] * 20) is None  # alike sources may have alike translations


def test_ignores_source():
    assert "with the source of another sentence the validation loss is 3.43" in ignores_source(3.40, 3.43)
    assert ignores_source(1.5, 4.0) is None
