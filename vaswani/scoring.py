"""Section 6.1: BLEU, the paper's and the community's. Strings in, numbers out.

`paper_bleu` is what the authors did: Moses tokens, compounds split at hyphens, multi-bleu.perl. `sacrebleu` is what is
comparable since 2018. On the same translations the first is about one point higher, so each comes with its name.
"""

import contextlib
import functools
import importlib
import math
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from . import moses
from .score_checks import check_lines, check_text


# ------------------------------------------------------------------------------------------------------ the paper's BLEU
@dataclass(frozen=True)
class PaperBleu:
    """A score of multi-bleu.perl; `str()` is the line that it prints."""

    score: float  # 0 to 100
    precisions: tuple[float, ...]  # of 1- to 4-grams, 0 to 100
    bp: float  # brevity penalty
    ratio: float  # hyp_len / ref_len
    hyp_len: int  # tokens
    ref_len: int
    signature: str  # the protocol, in sacreBLEU's manner

    def __str__(self) -> str:
        precisions = "/".join(f"{precision:.1f}" for precision in self.precisions)
        lengths = f"BP={self.bp:.3f}, ratio={self.ratio:.3f}, hyp_len={self.hyp_len}, ref_len={self.ref_len}"
        return f"BLEU = {self.score:.2f}, {precisions} ({lengths})"


def paper_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    lang: str,
    replace_unicode_punctuation: bool = False,
    split_compounds: bool = True,
    aggressive_hyphens: bool = False,
    lowercase: bool = False,
    tokenize: bool = True,
) -> PaperBleu:
    """The BLEU of section 6.1, equal to what Moses' Perl scripts print (tensor2tensor's get_ende_bleu.sh).

    Args:
        hypotheses, references: plain text, line by line.
        lang: language code of the text; its apostrophes and abbreviations matter.
        replace_unicode_punctuation: replace-unicode-punctuation.perl first, as the authors' script since April 2018.
        split_compounds: hyphens become ##AT##-##AT## on both sides.
        aggressive_hyphens: `tokenizer.perl -a`, which splits hyphens its own way: needs split_compounds=False.
        lowercase: `multi-bleu.perl -lc`, which reads bytes: A to Z only.
        tokenize: False for text that Moses has tokenised, on both sides.

    Raises:
        ValueError: line counts, options or text that would give a number which means something else.
    """
    if aggressive_hyphens and (split_compounds or not tokenize):
        raise ValueError(
            "aggressive_hyphens splits hyphens in tokenisation: pass split_compounds=False, lest they are split twice, "
            "and tokenize=True"
        )
    code, lang = lang, re.split("[-_]", lang)[0].lower()  # of pt-BR, what Moses knows: pt
    if not re.fullmatch("[a-z]{2,3}", lang):
        raise ValueError(f"{code!r} is no language code: pass lang='de' for German, 'fr' for French, ...")
    check_lines(hypotheses, references, lang)
    check_text(hypotheses, references, tokenize=tokenize, split_compounds=split_compounds)

    def tokens(line: str) -> list[bytes]:
        line = moses.replace_unicode_punctuation(line) if replace_unicode_punctuation else line
        line = moses.tokenize(line, lang, aggressive_hyphens=aggressive_hyphens) if tokenize else line
        line = moses.split_compounds(line.encode()) if split_compounds else line.encode()
        return (line.lower() if lowercase else line).split()  # bytes, as Perl reads them: only ASCII spaces split

    def ngrams(words: list[bytes], n: int) -> Counter:
        return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))

    matches, totals, hyp_len, ref_len = [0] * 4, [0] * 4, 0, 0
    for hypothesis, reference in zip(map(tokens, hypotheses), map(tokens, references), strict=True):
        hyp_len, ref_len = hyp_len + len(hypothesis), ref_len + len(reference)
        for n in range(4):
            found, wanted = ngrams(hypothesis, n + 1), ngrams(reference, n + 1)
            matches[n] += (found & wanted).total()
            totals[n] += found.total()
    precisions = [match / total if total else 0.0 for match, total in zip(matches, totals, strict=True)]
    bp = 1.0 if hyp_len >= ref_len else math.exp(1 - ref_len / hyp_len) if hyp_len else 0.0
    score = 100 * bp * math.prod(precisions) ** (1 / 4)
    signature = "|".join((
        f"nrefs:1|case:{'lc' if lowercase else 'mixed'}",
        f"tok:{'moses.' + lang if tokenize else 'none'}{'.a' if aggressive_hyphens else ''}",
        f"punct:{'ascii' if replace_unicode_punctuation else 'kept'}",
        f"compounds:{'##AT##-##AT##' if split_compounds else 'kept'}|smooth:none|script:multi-bleu",
    ))  # fmt: skip
    percent = tuple(100 * precision for precision in precisions)
    return PaperBleu(score, percent, bp, hyp_len / ref_len if ref_len else 0.0, hyp_len, ref_len, signature)


# ------------------------------------------------------------------------------------------- sacreBLEU, and side by side
WHAT = {
    "paper_bleu": "the paper's: Moses tokens, compounds split, multi-bleu.perl, cased",
    "paper_bleu_ascii": "the same, typographic quotes made ASCII first: the authors' script since 2018",
    "sacrebleu": "sacreBLEU on plain text, cased: to compare with other work since 2018",
    "sacrebleu_intl": "sacreBLEU that splits off Unicode punctuation too: nearer to the paper's tokens",
    "chrf2": "character n-grams, recall counted double: no tokens, lenient with endings and compounds",
    "length_ratio": "tokens of the translations per token of the reference: below 1, BLEU subtracts for brevity",
}

WHAT_OF_TOKENS = WHAT | {
    "multi_bleu": "multi-bleu.perl on the tokens as they stand, cased",
    "paper_bleu": "the same with compounds split at hyphens, as the paper's",
    "sacrebleu": "sacreBLEU on the tokens as they stand",
}


class Score(NamedTuple):
    score: float  # 0 to 100; the length ratio is 1 for equal lengths
    signature: str  # what exactly was computed: a BLEU without one cannot be compared
    details: str  # n-gram precisions, brevity penalty, lengths
    what: str = ""  # a line for whoever reads the number

    def __str__(self) -> str:
        return f"BLEU = {self.score:.2f} {self.details} | {self.signature}"


def sacrebleu(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> Score:
    """Corpus BLEU of detokenised text by sacreBLEU's defaults (cased, 13a), with its signature.

    Raises:
        ValueError: unequal or no lines.
    """
    check_lines(hypotheses, references)
    metric = BLEU(tokenize=tokenize, force=tokenize == "none")  # else it warns of tokens
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(result.score, metric.get_signature().format(), str(result).split(" = ", 1)[1].split(" ", 1)[1])


def score_all(
    hypotheses: Sequence[str], references: Sequence[str], lang: str, *, tokenized: bool = False
) -> dict[str, Score]:
    """Every number that is asked for, by name, each with its signature and what it is: `WHAT`, or for text that is
    `tokenized` already, on both sides, `WHAT_OF_TOKENS`.

    Raises:
        ValueError: as `paper_bleu`.
    """

    def paper(**options) -> PaperBleu:
        return paper_bleu(hypotheses, references, lang=lang, tokenize=not tokenized, **options)

    found = {}
    if tokenized:
        bleu = found["multi_bleu"] = paper(split_compounds=False)
        with contextlib.suppress(ValueError):  # hyphens that are split already
            found["paper_bleu"] = paper()
        tokenizers = {"sacrebleu": "none"}
    else:
        bleu = found["paper_bleu"] = paper()
        found["paper_bleu_ascii"] = paper(replace_unicode_punctuation=True)
        tokenizers = {"sacrebleu": "13a", "sacrebleu_intl": "intl"}
    scores = {name: Score(x.score, x.signature, str(x).split(", ", 1)[1]) for name, x in found.items()}
    scores |= {name: sacrebleu(hypotheses, references, tokenizer) for name, tokenizer in tokenizers.items()}
    chrf = CHRF()
    chrf_score = chrf.corpus_score(list(hypotheses), [list(references)]).score
    scores["chrf2"] = Score(chrf_score, chrf.get_signature().format(), "")
    scores["length_ratio"] = Score(bleu.ratio, bleu.signature, f"{bleu.hyp_len} / {bleu.ref_len}")
    what = WHAT_OF_TOKENS if tokenized else WHAT
    return {name: score._replace(what=what[name]) for name, score in scores.items()}


class Comparison(NamedTuple):
    score: float
    baseline: float
    p_value: float  # how often chance alone makes a difference as large
    signature: str


def paired_bootstrap(
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    references: Sequence[str],
    *,
    tokenized: bool = False,
    samples: int = 1000,
) -> dict[str, Comparison]:
    """Whether two systems differ by more than chance, in BLEU (13a; of text that is `tokenized` already, of its tokens)
    and chrF2: sacreBLEU's paired bootstrap test.

    Raises:
        ValueError: unequal or no lines.
    """
    for lines in (hypotheses, baseline):
        check_lines(lines, references)
    systems = [("baseline", list(baseline)), ("system", list(hypotheses))]
    metrics = {"BLEU": BLEU(tokenize="none" if tokenized else "13a", force=tokenized), "chrF2": CHRF()}
    signatures, scores = PairedTest(systems, metrics, [list(references)], test_type="bs", n_samples=samples)()
    comparisons = {}
    for name, signature in signatures.items():
        other, own = scores[name]
        p_value = float(own.p_value) if own.score != other.score else 1.0  # PairedTest calls no difference significant
        comparisons[name] = Comparison(own.score, other.score, p_value, str(signature))
    return comparisons


# ---------------------------------------------------------------------------------------- as a metric of Hugging Face's
def __getattr__(name: str):
    if name == "VaswaniBleu":  # made when asked for: `evaluate` takes seconds to import, and training has no use for it
        return _metric()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def _metric() -> type:
    import datasets

    evaluate = _evaluate_library()

    class VaswaniBleu(evaluate.Metric):
        """`paper_bleu` as an `evaluate.Metric`, without a network: VaswaniBleu("de").compute(predictions=, references=).

        The language is its configuration; `compute` takes the options of `paper_bleu`, and gives its fields as a dict.
        """

        def _info(self):
            if self.config_name == "default":
                raise ValueError("say the language of the text: VaswaniBleu('de')")
            return evaluate.MetricInfo(
                description=paper_bleu.__doc__,
                citation="Vaswani et al. 2017, Attention Is All You Need",
                inputs_description="predictions, references: plain text, a string each",
                features=datasets.Features({name: datasets.Value("string") for name in ("predictions", "references")}),
            )

        def _compute(self, predictions, references, **options):
            return vars(paper_bleu(predictions, references, lang=self.config_name, **options)).copy()

    return VaswaniBleu


def _evaluate_library():
    """The library `evaluate`. Folders with a file evaluate.py, as our scripts/, are passed over: it would hide the library."""
    path = sys.path[:]
    sys.path[:] = [folder for folder in path if not (Path(folder) / "evaluate.py").is_file()]
    try:
        library = importlib.import_module("evaluate")
    finally:
        sys.path[:] = path
    if not hasattr(library, "Metric"):
        raise ImportError(f"{library.__file__} was imported as `evaluate` and hides the library: rename or remove it")
    return library
