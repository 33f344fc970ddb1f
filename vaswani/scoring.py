"""Section 6.1: BLEU. Strings in, numbers out."""

from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu.metrics import BLEU


class Score(NamedTuple):
    score: float  # 0 to 100
    signature: str  # what exactly was computed: a BLEU without one cannot be compared
    details: str  # n-gram precisions, brevity penalty, lengths

    def __str__(self) -> str:
        return f"BLEU = {self.score:.2f} {self.details} | {self.signature}"


def sacrebleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus BLEU of detokenised text by sacreBLEU's defaults (cased, 13a), with its signature.

    Raises:
        ValueError: unequal or no lines.
    """
    if len(hypotheses) != len(references):
        raise ValueError(
            f"{len(hypotheses):,} translations but {len(references):,} references: each line needs one of both"
        )
    if not hypotheses:
        raise ValueError("there is nothing to score: no lines")
    metric = BLEU()
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(result.score, metric.get_signature().format(), str(result).split(" = ", 1)[1].split(" ", 1)[1])
