import json
import os
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from datetime import date
from decimal import Decimal

import pytest
from babel import Locale

from vaswani import cldr_corpus
from vaswani.cldr_corpus import ALL_PATTERNS, WORDS, generate

EN, DE = Locale("en"), Locale("de")
SPLITS = ("train", "valid", "test")
HELD_OUT = ("valid", "test")
MONTHS = {names[m]: m for names in (EN.months["format"]["wide"], DE.months["format"]["wide"]) for m in range(1, 13)}
MONTH = "|".join(MONTHS)
DATES = (  # March 5, 2021 / 5. März 2021 / 3/5/2021 / 5.3.2021
    (re.compile(rf"({MONTH}) (\d+), (\d{{4}})"), lambda m: (int(m[3]), MONTHS[m[1]], int(m[2]))),
    (re.compile(rf"(\d+)\. ({MONTH}) (\d{{4}})"), lambda m: (int(m[3]), MONTHS[m[2]], int(m[1]))),
    (re.compile(r"(\d+)/(\d+)/(\d{4})"), lambda m: (int(m[3]), int(m[1]), int(m[2]))),
    (re.compile(r"(\d+)\.(\d+)\.(\d{4})"), lambda m: (int(m[3]), int(m[2]), int(m[1]))),
)
NUMBER = re.compile(r"\d(?:[\d.,:/]*\d)?")


@pytest.fixture(scope="module")
def corpus():
    return generate()


def everything(corpus):
    return [pair for split in SPLITS for pair in corpus[split]]


def dates(text):
    return [read(match) for pattern, read in DATES for match in pattern.finditer(text)]


def quantities(text):
    """The number strings of `text` outside its dates."""
    for pattern, _ in DATES:
        text = pattern.sub("", text)
    return NUMBER.findall(text)


def value(text, language):
    """The value of a number string, or None for a time of day."""
    if ":" in text:
        return None
    return Decimal(text.replace(",", "") if language == "en" else text.replace(".", "").replace(",", "."))


def english_names():
    """Every form of every CLDR name in the English sentences."""
    names = {
        word["en"]: word["names"][0]
        for sort in ("territory", "language", "currency", "month", "weekday")
        for word in WORDS[sort]
    }
    text = cldr_corpus.VOCABULARY + " ".join([*cldr_corpus.SPANS, "percent"])
    for unit in set(re.findall(r"[a-z-]+(?=:\d)", text)) | {"percent"}:
        for number in (1, 2):
            names[cldr_corpus._measured(Decimal(number), unit)["en"].split(" ", 1)[1]] = f"unit:{unit}"
    return names | {
        "%": "unit:percent",
        "€": "currency:EUR",
        "$": "currency:USD",
        "£": "currency:GBP",
        "¥": "currency:JPY",
    }


def test_has_tens_of_thousands_of_pairs_with_one_target_each(corpus):
    assert {split: len(corpus[split]) for split in SPLITS} == {"train": 30000, "valid": 500, "test": 1000}
    pairs = everything(corpus)
    assert len({pair["en"] for pair in pairs}) == len(pairs)
    assert sum(pair["en"] == pair["de"] for pair in pairs) <= 0.01 * len(pairs)


def test_no_source_has_two_targets_even_across_seeds(corpus):
    targets = {}
    for pair in everything(corpus) + [pair for seed in (2, 3) for pair in generate(seed, train_pairs=3000)["train"]]:
        assert targets.setdefault(pair["en"], pair["de"]) == pair["de"]


def test_text_is_clean(corpus):
    for pair in everything(corpus):
        assert set(pair) == {"en", "de", "pattern", "kind"}
        for text in (pair["en"], pair["de"]):
            assert unicodedata.is_normalized("NFC", text)
            assert not re.search(r"[^\S ]|  |^ | $|\{|\}", text), text
            assert text[-1] == "." and text[-2] != "." and (text[0].isupper() or text[0].isdigit()), text
            assert 4 <= len(text.split()) <= 16, text


def test_every_pattern_is_in_every_split(corpus):
    kinds = {name: kind for name, kind, *_ in ALL_PATTERNS}
    assert len(kinds) == len(ALL_PATTERNS) and set(kinds.values()) == {"number", "date", "name"}
    for split in SPLITS:
        counts = Counter(pair["pattern"] for pair in corpus[split])
        assert set(counts) == set(kinds)
        assert max(counts.values()) - min(counts.values()) <= 1
        assert all(pair["kind"] == kinds[pair["pattern"]] for pair in corpus[split])


def test_kind_tells_what_is_in_the_sentence(corpus):
    for pair in everything(corpus):
        found = "date" if dates(pair["en"]) else "number" if quantities(pair["en"]) else "name"
        assert found == pair["kind"]


def test_both_languages_show_the_same_numbers_and_dates(corpus):
    for pair in everything(corpus):
        assert dates(pair["en"]) == dates(pair["de"])
        en, de = ([value(text, language) for text in quantities(pair[language])] for language in ("en", "de"))
        assert en == de


def test_numbers_of_the_held_out_splits_are_unseen(corpus):
    strings, values = {}, {}
    for split in SPLITS:
        # Training counts with all digits of its dates, so that no day or year gives a number away either.
        read = NUMBER.findall if split == "train" else quantities
        found = [
            (text, language) for pair in corpus[split] for language in ("en", "de") for text in read(pair[language])
        ]
        strings[split] = {text for text, _ in found}
        values[split] = {value(*pair) for pair in found if not re.search(r"[:/]|\..*\.\d{4}$", pair[0])}
    for split in HELD_OUT:
        assert len(strings[split]) > 100
        assert not strings[split] & strings["train"]
        assert not values[split] & values["train"]
    assert not strings["valid"] & strings["test"]


def test_dates_of_the_held_out_splits_are_unseen(corpus):
    found = {
        split: {day for pair in corpus[split] for language in ("en", "de") for day in dates(pair[language])}
        for split in SPLITS
    }
    for split in HELD_OUT:
        assert len(found[split]) > 50
        assert not found[split] & found["train"]
    assert not found["valid"] & found["test"]


def test_every_name_is_seen_in_training_in_another_pattern(corpus):
    names = {text.removeprefix("the "): name for text, name in english_names().items()}
    # The longest first: "South Sudan" is not "Sudan", nor "kilometers per hour" "kilometers".
    ordered = sorted(names, key=lambda name: (-len(name), name))
    finder = re.compile(rf"(?<![a-zA-Z])(?:{'|'.join(map(re.escape, ordered))})(?![a-zA-Z])")
    shown, needed = {}, set()
    for split in SPLITS:
        for pair in corpus[split]:
            text = re.sub(r"days\.$", "day.", pair["en"])  # "on Mondays"
            for name in (names[found] for found in finder.findall(text)):
                if split == "train":
                    shown.setdefault(name, set()).add(pair["pattern"])
                else:
                    needed.add((name, pair["pattern"]))
    assert shown.keys() == set(names.values())
    assert {name.split(":")[0] for name, _ in needed} == {
        "territory",
        "language",
        "currency",
        "unit",
        "month",
        "weekday",
    }
    assert [pair for pair in needed if not shown[pair[0]] - {pair[1]}] == []


def test_the_same_on_every_run():
    sizes = {"train_pairs": 900, "valid_pairs": 60, "test_pairs": 60}
    code = f"import json; from vaswani.cldr_corpus import generate; print(json.dumps(generate(7, **{sizes})))"
    run = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": "4711"}, capture_output=True, check=True
    )
    assert json.loads(run.stdout) == generate(7, **sizes) != generate(8, **sizes)


def test_small_sizes_and_impossible_ones():
    small = generate(3, train_pairs=500, valid_pairs=50, test_pairs=50)
    assert [len(small[split]) for split in SPLITS] == [500, 50, 50]
    assert generate(train_pairs=40, valid_pairs=0, test_pairs=0)["test"] == []
    with pytest.raises(ValueError, match=r"only \d+ of valid_pairs=50 .* train_pairs=1"):
        generate(train_pairs=1, valid_pairs=50)
    with pytest.raises(ValueError, match="train_pairs must be from 0"):
        generate(train_pairs=10**9)
    with pytest.raises(ValueError, match="test_pairs must be from 0"):
        generate(train_pairs=1, valid_pairs=0, test_pairs=-1)


TERRITORY_FORMS = {  # nominative, where, where to, where from, accusative, after "von"
    "FR": ("Frankreich", "in Frankreich", "nach Frankreich", "aus Frankreich", "Frankreich", "von Frankreich"),
    "CH": ("die Schweiz", "in der Schweiz", "in die Schweiz", "aus der Schweiz", "die Schweiz", "von der Schweiz"),
    "UA": ("die Ukraine", "in der Ukraine", "in die Ukraine", "aus der Ukraine", "die Ukraine", "von der Ukraine"),
    "IR": ("der Iran", "im Iran", "in den Iran", "aus dem Iran", "den Iran", "vom Iran"),
    "US": ("die USA", "in den USA", "in die USA", "aus den USA", "die USA", "von den USA"),
    "NL": (
        *("die Niederlande", "in den Niederlanden", "in die Niederlande", "aus den Niederlanden", "die Niederlande"),
        "von den Niederlanden",
    ),
    "GB": (
        *("das Vereinigte Königreich", "im Vereinigten Königreich", "ins Vereinigte Königreich"),
        *("aus dem Vereinigten Königreich", "das Vereinigte Königreich", "vom Vereinigten Königreich"),
    ),
    "AE": (
        *("die Vereinigten Arabischen Emirate", "in den Vereinigten Arabischen Emiraten"),
        *("in die Vereinigten Arabischen Emirate", "aus den Vereinigten Arabischen Emiraten"),
        *("die Vereinigten Arabischen Emirate", "von den Vereinigten Arabischen Emiraten"),
    ),
    "DO": (
        *("die Dominikanische Republik", "in der Dominikanischen Republik", "in die Dominikanische Republik"),
        *("aus der Dominikanischen Republik", "die Dominikanische Republik", "von der Dominikanischen Republik"),
    ),
}


@pytest.mark.parametrize("code", TERRITORY_FORMS)
def test_territories_inflect(code):
    (word,) = [word for word in WORDS["territory"] if word["names"] == [f"territory:{code}"]]
    assert tuple(word[form] for form in ("de", "in", "to", "from", "acc", "of")) == TERRITORY_FORMS[code]
    assert word["ending"] == ("en" if code in ("US", "NL", "AE") else "t")
    assert word["en"].startswith("the ") == (code in ("US", "NL", "GB", "AE", "DO"))


def test_territory_names_are_those_of_cldr():
    assert len(WORDS["territory"]) == len({word["names"][0] for word in WORDS["territory"]}) > 80
    for word in WORDS["territory"]:
        code = word["names"][0].partition(":")[2]
        if code not in ("TR", "US"):
            assert word["en"].removeprefix("the ") == EN.territories[code]
            # "Vereinigtes Königreich" and "Vereinigtes ..." inflect after the article: their stems are CLDR's.
            stems = [re.sub(r"(e[sn]?|s)$", "", part) for part in word["de"].split()]
            assert stems[-len(DE.territories[code].split()) :] == [
                re.sub(r"(e[sn]?|s)$", "", part) for part in DE.territories[code].split()
            ]


DAY = date(2021, 3, 5)


def measured(number, unit):
    return cldr_corpus._measured(Decimal(number), unit)


def word(sort, english):
    (found,) = [word for word in WORDS[sort] if word["en"] == english]
    return found


GOLDEN = [  # pattern and words of its fields: a name of the vocabulary, or a word made of a number, time or date
    ("weighs", {"person": "Anna", "load": "suitcase", "quantity": measured("23.5", "kilogram")},
     "Anna's suitcase weighs 23.5 kilograms.", "Annas Koffer wiegt 23,5 Kilogramm."),
    ("dimension", {"object": "the river", "quantity": measured("1234.5", "kilometer")},
     "The river is 1,234.5 kilometers long.", "Der Fluss ist 1.234,5 Kilometer lang."),
    ("distance", {"place": "the station", "quantity": measured("1", "kilometer")},
     "It is 1 kilometer to the station.", "Bis zum Bahnhof ist es 1 Kilometer."),
    ("distance", {"place": "the border", "quantity": measured("5", "mile")},
     "It is 5 miles to the border.", "Bis zur Grenze sind es 5 Meilen."),
    ("measure", {"measure": "the temperature", "territory": "Iran", "quantity": measured("35", "celsius")},
     "The temperature in Iran is 35 degrees Celsius.", "Die Temperatur im Iran beträgt 35 Grad Celsius."),
    ("change", {"level": "the price", "moved": "rose", "quantity": measured("12.5", "%")},
     "The price rose by 12.5%.", "Der Preis ist um 12,5 % gestiegen."),
    ("over", {"event": "the film", "quantity": measured("5", "minute")},
     "After 5 minutes, the film was over.", "Nach 5 Minuten war der Film zu Ende."),
    ("ago", {"person": "Peter", "territory": "the United States", "span": measured("3", "day")},
     "Peter arrived in the United States 3 days ago.", "Peter ist vor 3 Tagen in den USA angekommen."),
    ("since", {"person": "Eva", "territory": "France", "stay": measured("2", "year")},
     "Eva has been living in France for 2 years.", "Eva lebt seit 2 Jahren in Frankreich."),
    ("since", {"person": "Eva", "territory": "Switzerland", "stay": measured("1", "month")},
     "Eva has been living in Switzerland for 1 month.", "Eva lebt seit 1 Monat in der Schweiz."),
    ("price", {"article": "the book", "money": cldr_corpus._priced(Decimal("1234.5"), "GBP", "name")},
     "The book costs 1,234.50 British pounds.", "Das Buch kostet 1.234,50 britische Pfund."),
    ("price", {"article": "the book", "money": cldr_corpus._priced(Decimal("12"), "CHF", "name")},
     "The book costs 12.00 Swiss francs.", "Das Buch kostet 12,00 Schweizer Franken."),
    ("rate", {"ware": "the room", "cash": cldr_corpus._priced(Decimal("45.9"), "EUR", "standard"), "unit": "month"},
     "The room costs €45.90 per month.", "Das Zimmer kostet 45,90 € pro Monat."),
    ("share", {"share": measured("12.5", "percent"), "group": "people", "territory": "Lebanon", "language": "English"},
     "12.5 percent of the people in Lebanon speak English.",
     "12,5 Prozent der Menschen im Libanon sprechen Englisch."),
    ("leaves", {"person": "Anna", "territory": "Switzerland", "clock": cldr_corpus._clock(15, 45)},
     "Anna's flight to Switzerland leaves at 3:45 PM.", "Annas Flug in die Schweiz geht um 15:45 Uhr."),
    ("open", {"weekday": "Friday", "shop": "the bank", "opening": cldr_corpus._clock(9, 5),
              "closing": cldr_corpus._clock(18, 30)},
     "On Friday, the bank is open from 9:05 AM to 6:30 PM.",
     "Am Freitag ist die Bank von 09:05 bis 18:30 Uhr geöffnet."),
    ("trip", {"person": "Anna", "territory": "Iran", "date": cldr_corpus._dated(DAY, "long")},
     "On March 5, 2021, Anna traveled to Iran.", "Am 5. März 2021 reiste Anna in den Iran."),
    ("starts", {"meeting": "the course", "territory": "the Netherlands", "day": cldr_corpus._dated(DAY, "full")},
     "The course in the Netherlands starts on Friday, March 5, 2021.",
     "Der Kurs in den Niederlanden beginnt am Freitag, dem 5. März 2021."),
    ("today", {"when": "today is", "day": cldr_corpus._dated(DAY, "full")},
     "Today is Friday, March 5, 2021.", "Heute ist Freitag, der 5. März 2021."),
    ("dated", {"paper": "the invoice", "short": cldr_corpus._dated(DAY, "yMd")},
     "The invoice is dated 3/5/2021.", "Die Rechnung ist vom 5.3.2021."),
    ("translates", {"person": "Eva", "text": "the letter", "tongue": "Japanese", "tongue2": "German"},
     "Eva is translating the letter from Japanese into German.",
     "Eva übersetzt den Brief aus dem Japanischen ins Deutsche."),
    ("flies", {"weekday": "Sunday", "person": "Eva", "territory": "Iraq", "territory2": "the United Kingdom"},
     "On Sunday, Eva is flying from Iraq to the United Kingdom.",
     "Am Sonntag fliegt Eva vom Irak ins Vereinigte Königreich."),
    ("visits", {"person": "Paul", "territory": "Iran", "month": "May"},
     "Paul would like to visit Iran in May.", "Paul möchte im Mai den Iran besuchen."),
    ("imports", {"territory": "the Netherlands", "commodity": "oil", "territory2": "Iran"},
     "The Netherlands imports oil from Iran.", "Die Niederlande importieren Öl aus dem Iran."),
    ("imports", {"territory": "Iran", "commodity": "tea", "territory2": "the United States"},
     "Iran imports tea from the United States.", "Der Iran importiert Tee aus den USA."),
    ("accepts", {"shop": "the hotel", "territory": "Ukraine", "currency": "Swedish kronor"},
     "The hotel in Ukraine accepts Swedish kronor.", "Das Hotel in der Ukraine nimmt schwedische Kronen an."),
    ("closed", {"venues": "the stores", "territory": "Turkey", "weekday": "Monday"},
     "The stores in Turkey are closed on Mondays.", "Die Läden in der Türkei sind montags geschlossen."),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "words", "en", "de"), GOLDEN, ids=[en for *_, en, _ in GOLDEN])
def test_golden_sentences(pattern, words, en, de):
    (templates,) = [templates for name, _, *templates in ALL_PATTERNS if name == pattern]
    words = {
        field: word(field.rstrip("2"), given) if isinstance(given, str) and field != "unit" else given
        for field, given in words.items()
    }
    if "unit" in words:
        words["unit"] = {"en": words["unit"], "de": "Monat"}
    assert cldr_corpus._fill(templates[0], words, "en") == en
    assert cldr_corpus._fill(templates[1], words, "de") == de


@pytest.mark.parametrize(
    ("en", "de"),
    [
        ("in Switzerland", "[Ii]n der Schweiz"),
        ("to Switzerland", "in die Schweiz"),
        ("visit Switzerland", " die Schweiz "),
        ("in Iran", "[Ii]m Iran"),
        ("to Iran", "in den Iran"),
        ("comes from Iran", "aus dem Iran"),
        ("to France", "nach Frankreich"),
        ("in the United States", "[Ii]n den USA"),
        ("^The United States imports", "^Die USA importieren"),
        ("imports .* from the Netherlands", "importiert?(en)? .* aus den Niederlanden"),
        (r"^It is 1 \w+ to", r" ist es 1 \w+\.$"),
        (r"^It is [\d.,]*[\d.,]\d \w+ to", " sind es "),
        (r"\d months ago", r"vor \d+ Monaten "),
        (r"for \d+ years\.", r"seit \d+ Jahren "),
        (r"12:(\d\d) AM", r"00:\d\d Uhr"),
        (r"\$\d", r"\d \$ pro "),
        ("pounds", "britische Pfund"),
    ],
)
def test_phrases_wherever_they_occur(corpus, en, de):
    found = [pair for pair in everything(corpus) if re.search(en, pair["en"])]
    assert found
    assert [pair for pair in found if not re.search(de, pair["de"])] == []


def test_times_of_day(corpus):
    for pair in everything(corpus):
        times = [
            f"{int(hour) % 12 + 12 * (half == 'PM'):02}:{minute}"
            for hour, minute, half in re.findall(r"(\d+):(\d\d) ([AP]M)", pair["en"])
        ]
        assert re.findall(r"\d+:\d\d", pair["de"]) == times
        assert not times or " Uhr" in pair["de"]
