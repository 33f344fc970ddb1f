"""Sections 5.4 and 6: what is seen of a run while it trains: the line of each log step, and validations."""

import datetime
import time

import numpy as np
import torch

from .checkpoint import Progress, not_a_number
from .diagnostics import all_alike, effective_batch, ignores_source, stuck
from .loss import perplexity
from .objective import by_longer_side, summed_nll
from .pipeline_vaswani import VaswaniTranslationPipeline
from .plots import attention_heads, training_curves
from .processes import Team
from .run_config import RunConfig, UserError
from .run_folder import RunFolder, samples
from .scoring import sacrebleu
from .translation import translate


class StepLog:
    """Adds up what updates give, and makes a line of it. Reading the sums waits for the device, so only lines do.

    Args:
        bar: a tqdm bar; where it is disabled, lines are printed.
    """

    def __init__(self, config: RunConfig, accelerator, progress: Progress, run: RunFolder, bar):
        self.settings, self.accelerator, self.progress = config.training, accelerator, progress
        self.run, self.bar, self.warned = run, bar, set()
        self._begin()

    def _begin(self) -> None:
        self.sums, self.micro_batches = 0, 0
        self.step, self.tokens, self.clock = self.progress.step, self.progress.target_tokens, time.perf_counter()

    def add(self, sums: torch.Tensor, micro_batches: int) -> None:
        """One update's smoothed loss, nll and target tokens, as this process summed them."""
        self.sums, self.micro_batches = self.sums + sums, self.micro_batches + micro_batches
        self.bar.update()

    def pause(self, since: float) -> None:
        """The speed is that of training alone: what was done since then does not count."""
        self.clock += time.perf_counter() - since

    def line(self, rate: float, norm: float) -> None:
        """Says and notes the means since the last line.

        Raises:
            UserError: the loss is no number any more.
        """
        progress, settings = self.progress, self.settings
        smoothed, nll, tokens = self.accelerator.reduce(self.sums, "sum").tolist()
        if not np.isfinite(smoothed):
            raise UserError(not_a_number(progress.step))
        loss, nll = smoothed / tokens, nll / tokens
        if progress.first_nll is None:
            progress.first_nll = nll
        seconds = time.perf_counter() - self.clock
        progress.seconds += seconds
        speed = (progress.target_tokens - self.tokens) / seconds
        left = datetime.timedelta(
            seconds=round((settings.max_steps - progress.step) * progress.seconds / progress.step)
        )
        text = (
            f"loss {loss:.3f} | ppl {perplexity(nll):.2f} | {speed:,.0f} tokens/s | lr {rate:.2e} | "
            f"grad norm {norm:.2f} | left {left}"
        )
        self.bar.set_postfix_str(text)
        if self.bar.disable:
            self.run.say(f"step {progress.step:,}/{settings.max_steps:,} | {text}")
        self.run.note(
            progress.step, loss=loss, nll=nll, lr=rate, grad_norm=norm, tokens_per_second=speed, epoch=progress.epoch,
            target_tokens=progress.target_tokens, seconds=progress.seconds,
            micro_batches=self.micro_batches / (progress.step - self.step),
        )  # fmt: skip
        found = {stuck: stuck(progress, nll, settings), effective_batch: effective_batch(progress, settings)}
        for diagnostic, warning in found.items():
            if warning and diagnostic.__name__ not in self.warned:
                self.warned.add(diagnostic.__name__)
                self.run.say(f"warning: {warning}")
        self._begin()


class Validation:
    """Validates: loss and perplexity of the whole set, BLEU and samples of greedy translations, the use of the source.

    Args:
        objective: as `accelerator.prepare` returned it.
        valid: the tokenised validation set, with its text.
    """

    PROBES = 8  # batches on which the use of the source is measured

    def __init__(self, config: RunConfig, accelerator, team: Team, objective, tokenizer, valid, run: RunFolder):
        self.settings, self.accelerator, self.team = config.training, accelerator, team
        self.objective, self.tokenizer, self.valid, self.run = objective, tokenizer, valid, run
        self.model = accelerator.unwrap_model(objective).model
        self.groups = by_longer_side(valid)
        several = [rows for rows in self.groups if len(rows) > 1]  # a pair alone has no neighbour to take a source from
        self.probes = several[:: max(1, -(-len(several) // self.PROBES))]
        chosen = valid.select(range(min(self.settings.eval_sentences or len(valid), len(valid))))
        self.sources, self.references = list(chosen["source"]), list(chosen["target"])
        words = [len(source.split()) for source in self.sources]
        self.shown = self.sources[
            min(range(len(words)), key=lambda i: abs(words[i] - 9))
        ]  # neither trivial nor crowded

    def __call__(self, progress: Progress) -> None:
        nll, own, others = self.nll(self.groups), np.nan, np.nan
        if self.probes:
            own, others = self.nll(self.probes), self.nll(self.probes, other_sources=True)
        hypotheses = translate_all(self.team, self.model, self.tokenizer, self.sources, num_beams=1)
        bleu = sacrebleu(hypotheses, self.references, "none" if self.settings.tokenized else "13a")
        score = bleu.score if self.settings.metric_for_best == "bleu" else -nll
        progress.scores[progress.step] = self.team.gather(score)[0]  # one number decides for all
        best = "*" if progress.best_steps()[0] == progress.step else " "
        ppl = perplexity(nll)
        line = (
            f"{best} step {progress.step:,} | valid loss {nll:.3f} | ppl {ppl:.2f} | BLEU {bleu.score:.2f} (greedy)"
            + (f" | source worth {others - own:.2f}" if self.probes else "")
        )
        shown = samples(self.sources, self.references, hypotheses, self.settings.num_samples)
        self.run.say(f"{line}\n{shown}")
        self.run.note(
            progress.step, valid_nll=nll, valid_ppl=ppl, valid_bleu=bleu.score, valid_source_gain=others - own
        )
        self.run.append("validations.txt", line)
        self.run.write(f"samples/step_{progress.step}.txt", shown)
        ignored = ignores_source(own, others) if self.probes else None
        for warning in (all_alike(self.sources, hypotheses), ignored):
            if warning:
                self.run.say(f"warning: {warning}")
        if self.settings.figures and self.team.main:
            self.draw(progress.step)

    def nll(self, groups: list[np.ndarray], other_sources: bool = False) -> float:
        """Mean -log p per target token, over all processes; see `summed_nll`."""
        objective, own = self.accelerator.unwrap_model(self.objective), groups[self.team.rank :: self.team.world]
        with self.accelerator.autocast():
            sums = summed_nll(objective, self.valid, own, self.tokenizer.pad_token_id, other_sources)
        nll, tokens = self.accelerator.reduce(sums, "sum").tolist()
        return nll / tokens

    def draw(self, step: int) -> None:
        was_training = self.model.training
        pipe = VaswaniTranslationPipeline(self.model.eval(), self.tokenizer, device=self.model.device)
        seen = pipe(self.shown, num_beams=1, return_attentions=True)[0]
        self.model.train(was_training)
        tokens = seen["source_tokens"], seen["target_tokens"]
        title = f"step {step:,}: where each token of the translation was read from"
        attention_heads(
            seen["cross_attentions"].float().numpy(), *tokens, self.run.path / f"attention/step_{step}.png", title
        )
        training_curves(self.run.records(), self.run.path / "curves.png", title=self.run.path.name)


def translate_all(team: Team, model, tokenizer, sentences: list[str], num_beams: int) -> list[str]:
    """Translations of all sentences, on every process; each translates its share. In float32, as evaluate.py does."""
    own = translate(model, tokenizer, sentences[team.rank :: team.world], num_beams=num_beams)
    shares = team.gather(own)
    return [shares[i % team.world][i // team.world] for i in range(len(sentences))]


def exact_match(hypotheses: list[str], references: list[str], kinds: list[str]) -> dict[str, float]:
    """Percentage of translations equal to the reference, per kind of sentence, where the corpus names kinds."""
    hits: dict[str, list[bool]] = {}
    for hypothesis, reference, kind in zip(hypotheses, references, kinds, strict=True):
        hits.setdefault(kind, []).append(hypothesis == reference)
    return {kind: round(100 * sum(equal) / len(equal), 2) for kind, equal in sorted(hits.items())}
