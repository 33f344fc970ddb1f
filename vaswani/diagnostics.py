"""What goes wrong in trainings, noticed early: each function gives a sentence for the user, or None if all seems well."""

from collections import Counter

from .checkpoint import Progress
from .optim import learning_rate
from .run_config import RunConfig, TrainingConfig


def far_from_plan(config: RunConfig, pairs: int, target_tokens: int, world: int) -> list[str]:
    """Settings that do not mean what they seem to mean, for a corpus of so many pairs and target tokens."""
    settings, found = config.training, []
    if settings.max_steps < settings.warmup_steps:
        found.append(
            f"training ends at step {settings.max_steps:,}, before the learning rate has risen to its peak at step "
            f"{settings.warmup_steps:,}: lower warmup_steps or raise max_steps"
        )
    peak = learning_rate(settings.warmup_steps, config.model.d_model, settings.warmup_steps, settings.lr_factor)
    if peak > 0.01:
        found.append(
            f"the learning rate rises to {peak:.2g}, and the paper's to 0.0007: lower lr_factor or raise warmup_steps"
        )
    if world > 1 and settings.tokens_per_batch * pairs < world * target_tokens:
        found.append(
            f"{settings.tokens_per_batch:,} target tokens are {settings.tokens_per_batch * pairs / target_tokens:.1f} pairs, "
            f"fewer than the {world} processes, some of which will idle: raise tokens_per_batch or launch fewer"
        )
    return found


def effective_batch(progress: Progress, settings: TrainingConfig) -> str | None:
    """The measured number of target tokens per update is not the wanted one."""
    if progress.step < 20 or not (measured := progress.target_tokens / progress.step):
        return None
    if abs(measured / settings.tokens_per_batch - 1) < 0.1:
        return None
    return (
        f"an update has {measured:,.0f} target tokens on average, not tokens_per_batch={settings.tokens_per_batch:,}: the "
        f"corpus has too few, or too long pairs"
    )


def stuck(progress: Progress, nll: float, settings: TrainingConfig) -> str | None:
    """The loss has hardly moved since the first update. Models that were trained before may stay where they are."""
    if progress.step < 500 or settings.init_from or nll < progress.first_nll - 0.5:
        return None
    return (
        f"the loss does not move: {progress.first_nll:.2f} at the first step, {nll:.2f} at step {progress.step:,}; see the "
        f"learning rate, and try --overfit_one_batch"
    )


def all_alike(sources: list[str], translations: list[str]) -> str | None:
    """Different sentences have the same translation."""
    if len(set(sources)) < 10 or len(set(translations)) > 0.2 * len(set(sources)):
        return None
    text, count = Counter(translations).most_common(1)[0]
    return (
        f"nearly all translations are alike ({count} of {len(translations)} are {text[:60]!r}): usual in the first thousand "
        f"steps, later a sign that the model does not learn; try --overfit_one_batch"
    )


def ignores_source(nll: float, nll_of_other_sources: float) -> str | None:
    """Targets are as likely with the sources of other sentences: what is learnt is a language model of the target."""
    if nll_of_other_sources - nll > 0.1:
        return None
    return (
        f"the translations ignore the source: with the source of another sentence the validation loss is "
        f"{nll_of_other_sources:.2f}, with its own {nll:.2f}; usual in the first thousand steps. If it stays: does line n of "
        f"the source text mean what line n of the target text means? A lower lr_factor or a longer warm-up may help"
    )
