import gzip
import json
import os
import random
import re
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from load_script import ROOT
from sacrebleu.metrics import BLEU, CHRF
from sacremoses import MosesTokenizer

from vaswani import moses
from vaswani.score_checks import check_text, suspicions
from vaswani.scoring import paired_bootstrap, paper_bleu, sacrebleu, score_all

HERE = Path(__file__).parent / "data"
SHARED = Path(os.environ.get("VASWANI_SHARED", ROOT.parent / "shared")) / "data"
GOLDEN = SHARED / "bleu_golden"
NAMES = ["tricky_de", "tricky_fr"]
NAMES += [f"news21_{name}" for name in ("en_de_onlineG", "en_de_uedin", "de_fr_onlineB")]
NAMES += [f"general22_{name}" for name in ("en_de_onlineW", "de_fr_onlineA")]
OPTIONS = {
    "plain/tok": {"split_compounds": False},
    "plain/atat": {},
    "unicode_punct_replaced/tok": {"split_compounds": False, "replace_unicode_punctuation": True},
    "unicode_punct_replaced/atat": {"replace_unicode_punctuation": True},
    "plain/tok-a": {"split_compounds": False, "aggressive_hyphens": True},
}


def lines(path: Path) -> list[str]:
    """Skips where the data is not on this machine. Only a line feed ends a line: str.splitlines would cut more."""
    if not path.exists():
        pytest.skip(f"{path.name} is not here: set VASWANI_SHARED to the folder of development data")
    return (gzip.open if path.suffix == ".gz" else open)(path, "rb").read().decode().removesuffix("\n").split("\n")


def golden(name: str) -> tuple[list[str], list[str], dict]:
    folder, record = (HERE, "tricky_expected.json") if name.startswith("tricky") else (GOLDEN, "expected.json")
    pair = lines(folder / f"{name}.hyp"), lines(folder / f"{name}.ref")
    return *pair, json.loads((folder / record).read_text(encoding="utf-8"))[name]


# ------------------------------------------------------------------------------------------------------ the paper's BLEU
@pytest.mark.parametrize("name", NAMES)
def test_paper_bleu_prints_what_the_perl_scripts_print(name):
    hypotheses, references, expected = golden(name)
    assert len(hypotheses) == expected["lines"] and set(OPTIONS) < set(expected)
    for variant, options in OPTIONS.items():
        assert str(paper_bleu(hypotheses, references, lang=expected["lang"], **options)) == expected[variant], variant


def test_newstest2014_has_the_published_lengths():
    reference = lines(SHARED / "newstest" / "newstest2014.en-de.de")
    for split, length in ((False, 63_086), (True, 64_504)):
        score = paper_bleu(reference, reference, lang="de", split_compounds=split)
        assert (score.ref_len, score.hyp_len, str(score)[:13]) == (length, length, "BLEU = 100.00")
    assert "ref_len = 62688" in sacrebleu(reference, reference).details
    # the archive that the authors used was tokenised by the script of its time
    old = [moses.tokenize(line, "de", split_last_period=False).encode() for line in reference]
    assert sum(len(line.split()) for line in old) == 63_078
    assert sum(len(moses.split_compounds(line).split()) for line in old) == 64_496


@pytest.mark.parametrize(
    ("lang", "line", "tokens"),
    [
        ("en", "Don't: the 1990's 'n' \"x\".", "Don &apos;t : the 1990 &apos;s &apos; n &apos; &quot; x &quot; ."),
        ("en", "Art. 5, not No. Dr. Smith left at 5 p.m.", "Art. 5 , not No . Dr. Smith left at 5 p.m ."),
        ("en", "He said 'no.'", "He said &apos; no . &apos;"),
        ("fr", "L'eau d'aujourd'hui, 3,50 €...", "L&apos; eau d&apos; aujourd&apos; hui , 3,50 € ..."),
        ("de", "Er kommt z.B. am 3. Mai (ca. 12,5 %) 'nie'..", "Er kommt z.B. am 3. Mai ( ca. 12,5 % ) &apos; nie &apos; .."),
        ("de", "A,B und 1,2,3,", "A , B und 1,2,3 ,"),
        ("de", "x\u00a0y\u2028z\x1c\x01w e\u0301 ² &|<>[]`_", "x y zw e \u0301 ² &amp; &#124; &lt; &gt; &#91; &#93; ` _"),
        ("fi", "EU:ssa on 20:een asti: Hyvä", "EU:ssa on 20:een asti : Hyvä"),
        ("de", " \t", ""),
    ],
)  # fmt: skip
def test_tokens_of_tokenizer_perl(lang, line, tokens):
    assert moses.tokenize(line, lang) == tokens


def test_aggressive_hyphens():
    assert moses.tokenize("x-y-z 3-4 a-.b", "de", aggressive_hyphens=True) == "x @-@ y @-@ z 3 @-@ 4 a-.b"


@pytest.mark.parametrize("name", NAMES)
def test_sacremoses_differs_in_the_last_period_only(name):
    hypotheses, references, expected = golden(name)
    tokenizer = MosesTokenizer(expected["lang"])
    for line in hypotheses + references:
        theirs = tokenizer.tokenize(line, return_str=True)
        assert moses.tokenize(line, expected["lang"], split_last_period=False) == theirs
        assert moses.tokenize(line, expected["lang"]) == re.sub(r"(?<=[^\s.])\.$", " .", theirs)


def test_compounds_are_split_on_bytes():
    split = {"a-b": "a @ b", "a-b-c": "a @ b-c", "aa-bb-cc": "aa @ bb @ cc", "é-é-é": "é @ é @ é", "- -a a-": "- -a a-"}
    for before, after in split.items():
        assert moses.split_compounds(before.encode()).decode() == after.replace("@", "##AT##-##AT##")


def test_replace_unicode_punctuation():
    assert moses.replace_unicode_punctuation("„Ja“ – ‘so’ »x«…") == "„Ja\" – ‘so' »x«..."
    assert moses.replace_unicode_punctuation("好。  好．，、１２（％）") == '好. 好. ,,"2(%)'


words = st.lists(st.sampled_from(["a", "b", "B", "c-d", "é"]), max_size=12).map(" ".join)


@given(st.lists(st.tuples(words, words), min_size=1, max_size=4), st.booleans())
def test_multi_bleu_equals_sacrebleu_without_smoothing(pairs, lowercase):
    hypotheses, references = map(list, zip(*pairs, strict=True))
    ours = paper_bleu(hypotheses, references, lang="de", tokenize=False, split_compounds=False, lowercase=lowercase)
    theirs = BLEU(tokenize="none", smooth_method="none", lowercase=lowercase).corpus_score(hypotheses, [references])
    assert ours.score == pytest.approx(theirs.score)
    assert (ours.hyp_len, ours.ref_len) == (theirs.sys_len, theirs.ref_len)
    assert ours.precisions[0] == pytest.approx(theirs.precisions[0])


def test_lowercase_reads_bytes_and_the_signature_tells_the_protocol():
    options = {"lang": "de", "tokenize": False, "lowercase": True, "split_compounds": False}
    assert paper_bleu(["A B C D"], ["a b c d"], **options).score == pytest.approx(100)
    assert paper_bleu(["Ä b c d"], ["ä b c d"], **options).precisions[0] == 75
    assert paper_bleu(["x"], ["x"], **options).signature == (
        "nrefs:1|case:lc|tok:none|punct:kept|compounds:kept|smooth:none|script:multi-bleu"
    )
    assert "case:mixed|tok:moses.de|punct:ascii|compounds:##AT##-##AT##|" in (
        paper_bleu(["x"], ["x"], lang="de", replace_unicode_punctuation=True).signature
    )


# ------------------------------------------------------------------------------------------- sacreBLEU, and side by side
def test_known_scores_and_signature():
    text = ["Das ist ein kleines Haus .", "Es regnet heute in der Stadt ."]
    score = sacrebleu(text, text)
    assert score.score == pytest.approx(100)
    assert score.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    # 4-gram precisions 5/6, 4/5, 3/4, 2/3 (one word of six wrong at the end), no brevity penalty
    one = sacrebleu(["a b c d e x"], ["a b c d e f"])
    assert one.score == pytest.approx(100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25)
    assert "BP = 1.000" in str(one) and one.signature in str(one)


def test_all_scores_side_by_side():
    hypotheses, references, expected = golden("tricky_de")
    scores = score_all(hypotheses, references, "de")
    paper = [scores[name] for name in ("paper_bleu", "paper_bleu_ascii")]
    assert [f"BLEU = {score.score:.2f}, {score.details}" for score in paper] == [
        expected["plain/atat"], expected["unicode_punct_replaced/atat"],
    ]  # fmt: skip
    others = {"sacrebleu": BLEU(), "sacrebleu_intl": BLEU(tokenize="intl"), "chrf2": CHRF()}
    for name, metric in others.items():
        assert scores[name].score == metric.corpus_score(hypotheses, [references]).score
        assert scores[name].signature == metric.get_signature().format()
    assert scores["length_ratio"].score == 87 / 95
    assert list(scores) == ["paper_bleu", "paper_bleu_ascii", *others, "length_ratio"]
    assert len({score.what for score in scores.values()}) == len(scores)


def test_tokenised_text_is_scored_as_it_stands():
    references = ["ein well-known mann , der &quot; ja &quot; sagt .", "zwei hunde laufen , sagt man ."]
    hypotheses = ["ein well-known mann , der &quot; nein &quot; sagt .", "zwei hunde rennen , sagt man ."]
    with pytest.raises(ValueError, match=r"already tokenised.*tokenized: true"):
        score_all(hypotheses, references, "de")
    scores = score_all(hypotheses, references, "de", tokenized=True)
    assert list(scores) == ["multi_bleu", "paper_bleu", "sacrebleu", "chrf2", "length_ratio"]
    assert scores["multi_bleu"].score == pytest.approx(
        BLEU(tokenize="none").corpus_score(hypotheses, [references]).score
    )
    assert "tok:none" in scores["sacrebleu"].signature and "compounds:kept" in scores["multi_bleu"].signature
    assert scores["length_ratio"].details == "17 / 17" and scores["paper_bleu"].details.endswith("ref_len=19)")
    split = [line.replace("-", " @-@ ") for line in references]  # tokenizer.perl -a has split the hyphens
    assert "paper_bleu" not in score_all(split, split, "de", tokenized=True)


def test_paired_bootstrap():
    rng = random.Random(0)
    references = [" ".join(rng.choices("abcdefgh", k=12)) for _ in range(40)]
    better = [line[:-4] for line in references]
    worse = [line[:-12] for line in references]
    up, down, same = (
        paired_bootstrap(*systems, references, samples=100)["BLEU"]
        for systems in ((better, worse), (worse, better), (better, better))
    )
    assert up.score > up.baseline and (up.score, up.baseline) == (down.baseline, down.score)
    assert up.p_value < 0.05 and down.p_value < 0.05 and same.p_value == 1
    assert "bs:100" in up.signature and "tok:13a" in up.signature
    tokens, other = ([line.replace("a ", "a&") for line in lines] for lines in (references, better))
    plain, split = (
        paired_bootstrap(other, tokens, tokens, samples=100, tokenized=tokenized)["BLEU"] for tokenized in (True, False)
    )
    expected = BLEU(tokenize="none", force=True).corpus_score(other, [tokens]).score
    assert "tok:none" in plain.signature and plain.score == pytest.approx(expected) != split.score
    with pytest.raises(ValueError, match="39 translations but 40 references"):
        paired_bootstrap(better, worse[1:], references)


# -------------------------------------------------------------------------------------------------- the evaluate metric
def test_evaluate_metric(tmp_path, monkeypatch):
    evaluate = pytest.importorskip("evaluate")
    from vaswani.scoring import VaswaniBleu

    def no_network(*_):
        raise AssertionError("the metric went to the network")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    hypotheses, references, _ = golden("tricky_de")
    expected = vars(paper_bleu(hypotheses, references, lang="de"))
    metric = VaswaniBleu("de", cache_dir=str(tmp_path))
    assert isinstance(metric, evaluate.Metric) and str(metric.features) == (
        "{'predictions': Value('string'), 'references': Value('string')}"
    )
    assert metric.compute(predictions=hypotheses, references=references) == expected
    for i in range(0, len(hypotheses), 3):
        metric.add_batch(predictions=hypotheses[i : i + 3], references=references[i : i + 3])
    assert metric.compute() == expected
    kept = metric.compute(predictions=hypotheses, references=references, split_compounds=False)["score"]
    assert kept == paper_bleu(hypotheses, references, lang="de", split_compounds=False).score
    both = evaluate.combine([metric, VaswaniBleu("fr", cache_dir=str(tmp_path))], force_prefix=True)
    combined = both.compute(predictions=hypotheses, references=references)
    assert expected["score"] in combined.values() and len(combined) == 2 * len(expected)
    with pytest.raises(ValueError, match="say the language"):
        VaswaniBleu()


# ------------------------------------------------------------------------------------------------------------ guard rails
GOOD = ["Er sagte: „Das ist ein E-Mail-Test, ja.“", "Es regnet heute.", "Wir gehen nach Hause, sie nicht."]
TOKENS = [moses.tokenize(line, "de") for line in GOOD]
SPACED = [line.replace(".", " .").replace(",", " ,") for line in GOOD]


@pytest.mark.parametrize(
    ("hypotheses", "references", "options", "message"),
    [
        (GOOD[:1], GOOD, {}, "1 translations but 3 references"),
        ([], [], {}, "nothing to score"),
        (["a"] * 2737, ["a"] * 2737, {}, "2,737 lines are the part of newstest2014 .* use wmt14/full"),
        (GOOD, GOOD, {"lang": "German"}, "'German' is no language code: pass lang='de'"),
        (GOOD, GOOD, {"aggressive_hyphens": True}, "pass split_compounds=False, lest they are split twice"),
        (["Das ist ein Te@@ st"], ["Das ist ein Test"], {}, "translations are word pieces .@@ in line 1.: join them"),
        (["▁Das ▁ist"], ["▁Das ▁ist"], {"tokenize": False}, "word pieces .▁ in line 1."),
        (["x ##AT##-##AT## y"], ["x-y"], {"tokenize": False}, "translations are already split .* pass split_compounds"),
        (["x-y"], ["x ##AT##-##AT## y"], {}, "references are already split"),
        (["x @-@ y"], ["x @-@ y"], {"tokenize": False}, "already split .@-@ in line 1.: pass split_compounds=False"),
        (["Er sagt &quot; ja &quot;"], ['Er sagt "ja"'], {}, "translations are already tokenised, and not the references"),
        (["x @-@ y"], ["x-y"], {}, "translations are already tokenised, and not .* .@-@ in line 1.: give plain text"),
        (SPACED, GOOD, {}, "translations are already tokenised.* .a space before every period and comma"),
        (GOOD, SPACED, {}, "references are already tokenised, and not the translations"),
        (["Sie &amp; er , ja ."], ["Er &amp; sie , ja ."], {}, "both sides are already tokenised .&amp; in line 1."),
    ],
)  # fmt: skip
def test_guard_rails(hypotheses, references, options, message):
    with pytest.raises(ValueError, match=message):
        paper_bleu(hypotheses, references, **{"lang": "de", **options})


def test_a_stray_mark_in_a_hundred_lines_is_no_alarm():
    plain, stray = ["Ja, er sagt es."], ["R&amp;D, er sagt es."]
    check_text(99 * plain + stray, 100 * plain)
    with pytest.raises(ValueError, match="&amp; in line 99"):
        check_text(98 * plain + 2 * stray, 100 * plain)


def test_training_scores_whatever_comes_out():
    for hypotheses in (TOKENS, SPACED, ["@@ "] * 3):
        assert 0 <= sacrebleu(hypotheses, GOOD).score <= 100.1
    assert paper_bleu(TOKENS, TOKENS, lang="de", tokenize=False).score == pytest.approx(100)


def test_no_false_alarm_on_real_text():
    for name in NAMES:
        hypotheses, references, _ = golden(name)
        check_text(hypotheses, references)
        check_text(references, hypotheses, tokenize=False)
    rng = random.Random(0)
    for pattern in ("newstest/newstest2014.en-{0}.{1}", "multi30k/test_2016_flickr.{1}.gz"):
        for lang in ("de", "fr"):
            source, reference = (lines(SHARED / pattern.format(lang, side)) for side in ("en", lang))
            rough = [" ".join(word for word in line.split() if rng.random() < 0.7) for line in reference]
            check_text(rough, reference)
            assert not suspicions(source, rough, reference)
            assert not suspicions(source[:5], rough[:5], reference[:5])
            assert "source and reference swapped" in suspicions(reference, rough, source)[0]


def test_suspicions():
    english = ["The man reads a book in the city.", "Two dogs run."]
    german = ["Der Mann liest in der Stadt ein Buch.", "Zwei Hunde rennen."]
    assert suspicions(english, german, german) == suspicions(english, ["", ""], german) == []
    assert suspicions(["7:30", "Ulm"], ["7:30", "Ulm"], ["7.30 Uhr", "Ulm"]) == []
    assert "2 of 2 references repeat their source" in suspicions(english, german, english)[0]
    assert "look like the source language (100% of their words" in suspicions(german, german[::-1], english)[0]
