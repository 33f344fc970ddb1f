"""Section 5.1: the paper's training data by name, as data: which corpora, from where, on what terms, how many lines.

Every number is of a public source that is named beside it. None was measured here: checksums are verified when an
archive is downloaded, lines are counted when it is unpacked, and `recipes.resolve` says where they differ.

A recipe bears a year only if its corpora are those of that year's WMT task.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sacrebleu.dataset import DATASETS

from .download import Archive

TFDS = "tensorflow/datasets, url_checksums/wmt14_, wmt15_ and wmt16_translate.txt"
TFDS_CATALOGUE = "tensorflow/datasets, catalogue"
SACREBLEU = "sacrebleu, dataset table"
TORCHTEXT = "pytorch/text, datasets/wmt14.py"
HUB_CARD = "card of the dataset; fr-en: tensorflow/datasets, catalogue"
COUNTED = "counted alike in several public repositories"
COUNTED_NC9 = "tensorflow/datasets issue 4590"
LINGVO = "tensorflow/lingvo, parameters of WMT14 English-French (no filtering; together 40,842,333)"
REST = "calculated: what google/seq2seq's script makes has 4,562,102 lines (several counts), less the other corpora"

WMT_TERMS = "free for research, as WMT releases its data; cite the task's overview paper"
EUROPARL_TERMS = "no copyright restriction known to its makers; cite Koehn 2005"
HUB_TERMS = "unknown, says its card: those of the corpora in it"
NO_TERMS = "no licence of its own found; as WMT releases its data: free for research"

STATMT = "https://www.statmt.org/"
HUB = "https://huggingface.co/datasets/wmt/"  # copies of the same archives, at revisions said to hold them
WMT13 = "wmt13/resolve/8e5ec410581dd0ae8039a038c2ae866915e2a47c/"
WMT14 = "wmt14-data/resolve/0e64fcc0d910c9e1c5c2ae91541096155d0f2e2f/"
WMT16 = "wmt16/resolve/dda5348a17639cef349dcd613b9f11114f5931da/translation-task/"


@dataclass(frozen=True)
class Corpus:
    """Aligned text, English and `lang`. Names of files have the places {lang} and {side}, a language each."""

    name: str
    archive: Archive | None  # none: from the Hub
    members: tuple[str, str]  # in the archive: English, the other language
    lines: Mapping[str, int]  # by language; both sides have as many
    lines_from: Mapping[str, str]  # by language, who published the number
    terms: str
    aliases: tuple[str, ...] = ()  # other names under which people keep the text
    note: str = ""
    exact: bool = False  # of a test set every line counts
    undo_bpe: bool = False  # units joined by "@@ "


@dataclass(frozen=True)
class Hub:
    """One split of a dataset on the Hub."""

    dataset: str
    config: str
    split: str
    rows: int
    note: str = ""

    def as_corpus(self, lang: str, files: tuple[str, str]) -> Corpus:
        name, exact = f"{self.dataset} {self.config} {self.split}", self.split != "train"
        return Corpus(name, None, files, {lang: self.rows}, {lang: HUB_CARD}, HUB_TERMS, note=self.note, exact=exact)


@dataclass(frozen=True)
class Recipe:
    """What a model is trained, validated and tested on. `settings` are keys of a run's YAML."""

    name: str
    title: str
    lang: str  # the target; the source is English
    train: tuple[Corpus, ...]
    valid: Corpus
    test: Corpus
    settings: Mapping[str, str | int | float]
    hub: Mapping[str, Hub] = field(default_factory=dict)  # by split; empty: no such dataset
    kept: int | None = None  # training pairs that others kept, by the same list and filter
    note: str = ""


def sides(lang: str, members: tuple[str, ...]) -> tuple[str, str]:
    """Names of the English file and of its translation."""
    return tuple(name.format(lang=lang, side=side) for name, side in zip(members, ("en", lang), strict=True))


# -------------------------------------------------------------------------------------------------------- training text
def archive(name: str, address: str, mirror: str, size: int, sha256: str) -> Archive:
    return Archive(name, (address + name, HUB + mirror + name), f"sha256:{sha256}", TFDS, size)


EUROPARL_7 = Corpus(
    "Europarl v7",
    archive(
        "training-parallel-europarl-v7.tgz",
        STATMT + "wmt13/",
        WMT13,
        657_632_379,
        "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
    ),
    ("training/europarl-v7.{lang}-en.{side}",) * 2,
    {"de": 1_920_209, "fr": 2_007_723},
    {"de": COUNTED, "fr": LINGVO},
    EUROPARL_TERMS,
)
COMMON_CRAWL = Corpus(
    "Common Crawl",
    archive(
        "training-parallel-commoncrawl.tgz",
        STATMT + "wmt13/",
        WMT13,
        918_311_367,
        "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
    ),
    ("commoncrawl.{lang}-en.{side}",) * 2,
    {"de": 2_399_123, "fr": 3_244_152},
    {"de": COUNTED, "fr": LINGVO},
    NO_TERMS,
    note="noisy: some pairs are not parallel, or English on both sides",
)
NEWS_9 = Corpus(
    "News Commentary v9",
    archive(
        "training-parallel-nc-v9.tgz",
        STATMT + "wmt14/",
        WMT14,
        80_418_416,
        "cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
    ),
    ("training/news-commentary-v9.{lang}-en.{side}",) * 2,
    {"de": 201_288, "fr": 183_251},
    {"de": COUNTED_NC9, "fr": LINGVO},
    WMT_TERMS,
    note="CR and Unicode line breaks inside lines: who splits there counts 201,854 German and 202,002 English ones",
)
NEWS_11 = Corpus(
    "News Commentary v11",
    archive(
        "training-parallel-nc-v11.tgz",
        "https://data.statmt.org/wmt16/translation-task/",
        WMT16,
        75_178_032,
        "cfe8ab047e05043476e498ee765c98e939c7b7d6d294e856344c84476b619d6a",
    ),
    ("training-parallel-nc-v11/news-commentary-v11.{lang}-en.{side}",) * 2,
    {"de": 242_770},
    {"de": REST},
    WMT_TERMS,
)
GIGA = Corpus(
    "Giga-FrEn",
    archive(
        "training-giga-fren.tar",
        STATMT + "wmt10/",
        "wmt10/resolve/main/",
        2_595_102_720,
        "3ff8319f6919393520559bfbc7ad6a747ec81b3abc7be9993b338d4b017b4d9a",
    ),
    ("giga-fren.release2.fixed.{side}.gz",) * 2,
    {"fr": 22_520_376},
    {"fr": LINGVO},
    NO_TERMS,
)
UN = Corpus(
    "UN (undoc.2000)",
    archive(
        "training-parallel-un.tgz",
        STATMT + "wmt13/",
        WMT13,
        2_365_634_246,
        "29141b5c1eba149a94f7a59d3b1a834b2e47fe0f8758d68dcd77a3d3f497ee47",
    ),
    ("un/undoc.2000.{lang}-en.{side}",) * 2,
    {"fr": 12_886_831},
    {"fr": LINGVO},
    NO_TERMS,
)
SEQ2SEQ = Archive(
    "wmt16_en_de.tar.gz",
    (),  # Google Drive 0B_bZck-ksdkpM25jRUN2X2UxMm8, gone since 2021 (google/seq2seq issue 379)
    "md5:874ab6bbfe9c21ec987ed1b9347f95ec",
    TORCHTEXT,
)


# ------------------------------------------------------------------------------------------------- dev set and test set
def news(name: str, testset: str, lang: str, lines: int, *aliases: str) -> Corpus:
    """A test set as sacreBLEU knows it, so that the text is what sacreBLEU scores."""
    known = DATASETS[testset]
    url = known.data[0]
    file = f"{testset.split('/')[0]}-{url.rsplit('/', 1)[1]}"  # wmt13-test.tgz: other years have a test.tgz too
    text = Archive(file, (url, url.replace("//", "//www.")), f"md5:{known.md5[0]}", SACREBLEU)
    members = tuple(known.langpairs[f"en-{lang}"][:2])
    return Corpus(name, text, members, {lang: lines}, {lang: TFDS_CATALOGUE}, WMT_TERMS, aliases, exact=True)


def newstest2013(lang: str) -> Corpus:
    aliases = ("newstest2013.en-{lang}.{side}", "newstest2013.{lang}-en.{side}", "newstest2013.{side}")
    return news("newstest2013 (dev)", "wmt13", lang, 3_000, *aliases)


def newstest2014(lang: str) -> Corpus:
    """The full set. The filtered one of the campaign, 2,737 segments for English-German, is not what papers score."""
    aliases = ("newstest2014.en-{lang}.{side}", "newstest2014.{lang}-en.{side}")
    return news("newstest2014 (test)", "wmt14/full", lang, 3_003, *aliases)


def tokenised(name: str, lines: int, file: str, **options) -> Corpus:
    return Corpus(name, SEQ2SEQ, (file,) * 2, {"de": lines}, {"de": TORCHTEXT}, WMT_TERMS, **options)


# -------------------------------------------------------------------------------------------------------------- recipes
def hub(train: str, rows: int, config: str, note: str) -> dict[str, Hub]:
    """Training text of one dataset of the Hub; newstest2013 and newstest2014 are the other splits of wmt/wmt14."""
    return {
        "train": Hub(train, config, "train", rows, note),
        "valid": Hub("wmt/wmt14", config, "validation", 3_000),
        "test": Hub("wmt/wmt14", config, "test", 3_003),
    }


ENDE = {"source_lang": "en", "target_lang": "de", "vocab_size": 37000}
ENFR = {"source_lang": "en", "target_lang": "fr", "vocab_size": 32000}
EMPTY = "the same corpora without the pairs that have an empty side"

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "wmt14_en_de",
            "WMT 2014 English-German, the list that the paper names",
            "de",
            (EUROPARL_7, COMMON_CRAWL, NEWS_9),
            newstest2013("de"),
            newstest2014("de"),
            ENDE,
            hub("wmt/wmt14", 4_508_785, "de-en", EMPTY),
            note="the paper says about 4.5 million pairs",
        ),
        Recipe(
            "europarl7_commoncrawl_nc11_en_de",
            "the list that the authors really used: News Commentary v11 is of WMT 2016",
            "de",
            (EUROPARL_7, COMMON_CRAWL, NEWS_11),
            newstest2013("de"),
            newstest2014("de"),
            {**ENDE, "max_words": 80, "max_ratio": 9.0},  # clean-corpus-n.perl 1 80, whose ratio is 9 unless told
            hub("wmt/wmt16", 4_548_885, "de-en", EMPTY),
            kept=4_500_966,
            note="the authors' archive was cleaned by Moses tokens; max_words counts words between spaces",
        ),
        Recipe(
            "europarl7_commoncrawl_nc11_en_de_moses",
            "the authors' own archive: the list above, Moses-tokenised, 1 to 80 tokens a side; BPE is undone here",
            "de",
            (
                tokenised(
                    "Europarl v7, Common Crawl, News Commentary v11",
                    4_500_966,
                    "train.tok.clean.bpe.32000.{side}",
                    aliases=("train.tok.clean.{side}",),
                    undo_bpe=True,
                ),
            ),
            tokenised("newstest2013 (dev)", 3_000, "newstest2013.tok.{side}", exact=True),
            tokenised("newstest2014 (test)", 3_003, "newstest2014.tok.{side}", exact=True),
            {**ENDE, "tokenized": True},
            note="a model of it writes Moses tokens: tokenising them again before scoring spoils the score",
        ),
        Recipe(
            "wmt14_en_fr",
            "WMT 2014 English-French with the filter of ConvS2S: at most 175 words, ratio at most 1.5",
            "fr",
            (COMMON_CRAWL, EUROPARL_7, NEWS_9, GIGA, UN),
            newstest2013("fr"),
            newstest2014("fr"),
            {**ENFR, "max_words": 175, "max_ratio": 1.5},
            hub("wmt/wmt14", 40_836_715, "fr-en", EMPTY),
            kept=35_482_654 + 26_663,
            note="the paper says 36 million pairs, not how; ConvS2S kept 35,482,654 for training and 26,663 for "
            "validation (facebookresearch/fairseq-lua issue 59), by Moses tokens; max_words counts words between spaces",
        ),
    )
}
