"""What a model was trained on and on what terms, as far as the settings of its run tell."""

from dataclasses import dataclass
from pathlib import Path

from .wmt import RECIPES

CLDR_TERMS = "Unicode License v3, https://www.unicode.org/license.txt"
WMT_LICENSE = ("other", "wmt-free-for-research", "https://www.statmt.org/wmt14/translation-task.html")
FLICKR30K = ("other", "flickr30k-non-commercial-research", "https://shannon.cs.illinois.edu/DenotationGraph/")
MULTI30K_PAIRS = 29_000
# Identifiers that the Hub accepts as a licence: its documentation, "Licenses".
LICENSES = frozenset(
    """apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m afl-3.0
    artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0
    cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0
    cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0 cdla-permissive-2.0 wtfpl ecl-2.0
    epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0 isc lppl-1.3c ms-pl mpl-2.0
    odc-by odbl openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl lgpl-lr deepfloyd-if-license llama2 gemma
    unknown other""".split()  # noqa: SIM905
)


@dataclass(frozen=True)
class TrainingData:
    """Where the text of a run is from.

    `license`, `license_name` and `license_link` are the model's, as its data's terms suggest; None where they cannot be
    known, and the publisher has to say. `dataset` and `config` are the Hub's names of it, where it has some.
    """

    title: str
    kind: str  # "of news", ...: what the text is about, in a few words; "" where that is not known
    corpora: tuple[tuple[str, str], ...]  # name and terms
    license: str | None = None
    license_name: str | None = None
    license_link: str | None = None
    dataset: str | None = None
    name: str = "text"  # short, for the model-index
    config: str | None = None
    note: str = ""
    bias: str = ""
    own: bool = False  # text that only the publisher knows


def training_data(settings: dict, report: dict) -> TrainingData:
    """What is known of the data.

    Args:
        settings: of a run, as its config.yaml.
        report: of its preparation, as its data.json; may be empty.
    """
    if settings["recipe"]:
        return _recipe(settings)
    files = settings["data_dir"] is not None or not settings["dataset"]
    if not files and settings["dataset"] == "cldr":
        return TrainingData(
            "the embedded corpus of this project: names, numbers, dates and prices of Unicode CLDR in sentence patterns",
            "of these patterns",
            (("Unicode CLDR, by way of babel", CLDR_TERMS), ("sentence patterns", "Apache-2.0, as this project")),
            "apache-2.0",
            name="cldr",
            note="it is generated, and no text by other people is in it",
        )
    if _is_multi30k(settings, report):
        hub = "bentrevett/multi30k"
        note = f"taken from `{hub}` on the Hub" if not files else "recognised by its files and their number of lines"
        return TrainingData(
            "Multi30k (Elliott et al. 2016), captions of photographs and their translations",
            "of captions (short, concrete, in the present tense)",
            (
                ("Flickr30k, the English captions", "non-commercial research and education only"),
                ("Multi30k, their translations", "no licence of its own is given; the terms of Flickr30k are followed"),
            ),
            *FLICKR30K,
            name="multi30k",
            dataset=hub if "de" in (settings["source_lang"], settings["target_lang"]) else None,
            note=note,
            bias="The captions hold what their writers guessed about the people shown (van Miltenburg 2016, "
            "*Stereotyping and Bias in the Flickr30K Dataset*); a model of them repeats it.",
        )
    if not files and not Path(settings["dataset"]).is_absolute() and not settings["dataset"].startswith("."):
        name = settings["dataset"]
        address = f"https://huggingface.co/datasets/{name}"
        corpora = ((name, f"as its card says: {address}"),)
        return TrainingData(
            f"the dataset `{name}`",
            "",
            corpora,
            dataset=name,
            name=name.split("/")[-1],
            config=settings["dataset_config"],
            own=True,
        )
    return TrainingData("text that the publisher provided", "", (), own=True)


def _recipe(settings: dict) -> TrainingData:
    recipe = RECIPES[settings["recipe"]]
    corpora = recipe.train
    if settings["recipe_source"] == "hub":
        corpora = (recipe.hub["train"].as_corpus(recipe.lang, ("", "")),)
    return TrainingData(
        f"`{recipe.name}`: {recipe.title}",
        "of parliaments, news and web pages",
        tuple((corpus.name, corpus.terms) for corpus in corpora),
        *WMT_LICENSE,
        dataset="wmt/wmt14" if recipe.name.startswith("wmt14") else None,
        name="wmt14",  # of the validation and test sets, whatever it was trained on
        config=f"{recipe.lang}-en",
        note=recipe.note,
    )


def _is_multi30k(settings: dict, report: dict) -> bool:
    if settings["dataset"] == "bentrevett/multi30k" and settings["data_dir"] is None:
        return True
    names = [Path(name).name for name in settings["test_files"] or []]
    by_name = any(name.startswith("test_2016_flickr") for name in names)
    return by_name and report.get("train", {}).get("read", MULTI30K_PAIRS) == MULTI30K_PAIRS
