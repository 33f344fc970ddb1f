"""The built-in English-German training corpus: Unicode CLDR names, numbers and dates in hand-written sentences.

CLDR, read through the `babel` package, supplies the names of territories, languages, currencies, units, months and
weekdays, and the formats of numbers, prices, dates and times. The tables below add the sentence patterns and what CLDR
lacks for running German text: articles, cases, agreement. `generate` keeps the numbers and dates of the validation and
test sentences out of training, so that a good score on them means copying and reordering, not recall.
"""

import re
import unicodedata
import zlib
from collections import deque
from collections.abc import Callable
from datetime import date, time
from decimal import Decimal
from functools import lru_cache, partial
from random import Random
from typing import Any

try:
    from babel import Locale, dates, numbers, units
except ImportError as error:  # pragma: no cover - depends on the installation
    raise ImportError('the built-in corpus needs babel: in the clone, pip install -e ".[train]"') from error

# Every pattern: name and kind, the English and the German sentence. A field is a row of VOCABULARY, a sort of CLDR name
# or one of FIELDS; a 2 after it asks for another word of the same sort; a dot selects an inflected form.
PATTERNS = """
weighs number: {person}'s {load} weighs {quantity}. = {person}s {load} wiegt {quantity}.
dimension number: {object} is {quantity} {object.adj_en}. = {object} ist {quantity} {object.adj_de}.
distance number: It is {quantity} to {place}. = Bis {place} {quantity.are} es {quantity}.
measure number: {measure} in {territory} is {quantity}. = {measure} {territory.in} beträgt {quantity}.
change number: {level} {moved} by {quantity}. = {level} ist um {quantity} {moved}.
over number: After {quantity}, {event} was over. = Nach {quantity.dat} war {event} zu Ende.
ago number: {person} arrived in {territory} {span} ago. = {person} ist vor {span.dat} {territory.in} angekommen.
since number: {person} has been living in {territory} for {stay}. = {person} lebt seit {stay.dat} {territory.in}.
buys number: {person} {trades} {quantity} of {goods}. = {person} {trades} {quantity} {goods}.
price number: {article} costs {money}. = {article} kostet {money}.
rate number: {ware} costs {cash} per {unit}. = {ware} kostet {cash} pro {unit}.
share number: {share} of the {group} in {territory} speak {language}.
  = {share} der {group} {territory.in} sprechen {language}.
count number: There are {count} {counted} in {territory}. = {territory.in} gibt es {count} {counted}.
code number: The code for {lock} is {code}. = Der Code für {lock} lautet {code}.
leaves number: {person}'s flight to {territory} leaves at {clock}.
  = {person}s Flug {territory.to} geht um {clock} Uhr.
open number: On {weekday}, {shop} is open from {opening} to {closing}.
  = Am {weekday} ist {shop} von {opening} bis {closing} Uhr geöffnet.
trip date: On {date}, {person} traveled to {territory}. = Am {date} reiste {person} {territory.to}.
starts date: {meeting} in {territory} starts on {day}. = {meeting} {territory.in} beginnt am {day.dat}.
today date: {when} {day}. = {when} {day}.
valid date: {document} is valid until {deadline}. = {document} gilt bis zum {deadline}.
dated date: {paper} is dated {short}. = {paper} ist vom {short}.
speaks name: {person} speaks {language} and {language2}. = {person} spricht {language} und {language2}.
learns name: {person} is learning {language} in {territory}. = {person} lernt {territory.in} {language}.
translates name: {person} is translating {text} from {tongue} into {tongue2}.
  = {person} übersetzt {text} aus dem {tongue}en ins {tongue2}e.
works name: {person} comes from {territory} and works in {territory2}.
  = {person} kommt {territory.from} und arbeitet {territory2.in}.
flies name: On {weekday}, {person} is flying from {territory} to {territory2}.
  = Am {weekday} fliegt {person} {territory.of} {territory2.to}.
visits name: {person} would like to visit {territory} in {month}. = {person} möchte im {month} {territory.acc} besuchen.
imports name: {territory} imports {commodity} from {territory2}.
  = {territory} importier{territory.ending} {commodity} {territory2.from}.
accepts name: {shop} in {territory} accepts {currency}. = {shop} {territory.in} nimmt {currency} an.
closed name: {venues} in {territory} are closed on {weekday}s.
  = {venues} {territory.in} sind {weekday.adverb} geschlossen.
"""
# English|German|CLDR units with the bounds of their amounts|English adjective|German adjective. German words are in the
# case that their pattern asks for; where the German is missing it is the same.
VOCABULARY = """
person: Anna; Peter; Maria; Paul; Laura; Martin; Julia; David; Sarah; Daniel; Nina; Simon; Eva; Robert; Clara; Oliver
load: suitcase|Koffer|kilogram:60; package|Paket|kilogram:40 gram:100-9000; bag|Tasche|kilogram:20; dog|Hund|kilogram:60;
  bicycle|Fahrrad|kilogram:25; car|Auto|tonne:1-4; truck|Lastwagen|tonne:3-40; book|Buch|gram:100-2000
object: the river|der Fluss|kilometer:7000 mile:4000|long|lang; the road|die Straße|kilometer:900 mile:900|long|lang;
  the bridge|die Brücke|meter:9000 foot:9000|long|lang; the mountain|der Berg|meter:200-9000 foot:600-29000|high|hoch;
  the lake|der See|meter:900 foot:900|deep|tief; the table|der Tisch|centimeter:20-300 inch:10-90|wide|breit;
  the board|das Brett|millimeter:90 centimeter:9 inch:9|thick|dick;
  the tower|der Turm|meter:20-600 foot:70-1900|tall|hoch; the file|die Datei|megabyte:9000 gigabyte:90|in size|groß;
  the park|der Park|hectare:900|in size|groß; the apartment|die Wohnung|square-meter:20-300|in size|groß;
  the garden|der Garten|square-meter:20-9000|in size|groß;
  the national park|der Nationalpark|square-kilometer:9000 hectare:90000|in size|groß
place: the station|zum Bahnhof|kilometer:90 mile:60 meter:100-9000; the airport|zum Flughafen|kilometer:90 mile:60;
  the beach|zum Strand|kilometer:90 mile:60 meter:100-9000; the border|zur Grenze|kilometer:900 mile:900;
  the coast|zur Küste|kilometer:900 mile:900; the school|zur Schule|kilometer:40 meter:100-9000
measure: the temperature|die Temperatur|celsius:45 fahrenheit:110; the voltage|die Spannung|volt:7-400;
  the wind speed|die Windgeschwindigkeit|kilometer-per-hour:200 mile-per-hour:120 meter-per-second:60;
  the speed limit|das Tempolimit|kilometer-per-hour:20-150 mile-per-hour:20-90;
  the forest area|die Waldfläche|square-kilometer:90000 hectare:900000
level: the price|der Preis|%:90; the rent|die Miete|%:90; demand|die Nachfrage|%:90;
  the temperature|die Temperatur|celsius:20 fahrenheit:40; the voltage|die Spannung|volt:200;
  the speed|die Geschwindigkeit|kilometer-per-hour:90 mile-per-hour:90 meter-per-second:40;
  the water level|der Wasserstand|meter:9 centimeter:300 millimeter:900 inch:90 foot:20;
  memory usage|der Speicherverbrauch|megabyte:9000 gigabyte:90
moved: rose|gestiegen; fell|gesunken
event: the film|der Film|minute:10-300 hour:9; the meeting|die Besprechung|minute:10-300 hour:9;
  the break|die Pause|minute:5-90; the concert|das Konzert|minute:10-300 hour:9;
  the exam|die Prüfung|minute:10-300 hour:9; the strike|der Streik|day:200;
  the course|der Kurs|hour:90 day:90 week:60 month:40; the trip|die Reise|hour:90 day:900 week:90;
  the project|das Projekt|week:200 month:90 year:40
trades: buys|kauft; needs|braucht; sells|verkauft; orders|bestellt
goods: rice|Reis|kilogram:900 gram:900; flour|Mehl|kilogram:90 gram:900; sugar|Zucker|kilogram:90 gram:900;
  cheese|Käse|kilogram:40 gram:900; wheat|Weizen|tonne:900 kilogram:900; steel|Stahl|tonne:9000; milk|Milch|liter:90;
  oil|Öl|liter:900; water|Wasser|liter:9000
article: the book|das Buch; the ticket|das Ticket; the coat|der Mantel; the chair|der Stuhl; the lamp|die Lampe;
  the mirror|der Spiegel; the suitcase|der Koffer; the bag|die Tasche; the shirt|das Hemd; the table|der Tisch
ware: the tea|der Tee|kilogram; the coffee|der Kaffee|kilogram; the wine|der Wein|liter; the paint|die Farbe|liter;
  the cable|das Kabel|meter; the carpet|der Teppich|square-meter; the field|das Feld|hectare; the steel|der Stahl|tonne;
  the room|das Zimmer|day week month; the bicycle|das Fahrrad|hour day; the garage|die Garage|month year
group: people|Menschen; students|Studenten; teachers|Lehrer; doctors|Ärzte; engineers|Ingenieure; tourists|Touristen
counted: trees|Bäume; houses|Häuser; cars|Autos; bicycles|Fahrräder; dogs|Hunde; cats|Katzen; cows|Kühe;
  children|Kinder; students|Studenten; teachers|Lehrer; doctors|Ärzte; bridges|Brücken
lock: the door|die Tür; the safe|den Tresor; the garage|die Garage; the suitcase|den Koffer; the gate|das Tor
shop: the bank|die Bank; the hotel|das Hotel; the restaurant|das Restaurant; the museum|das Museum; the store|der Laden
meeting: the conference|die Konferenz; the course|der Kurs; the festival|das Festival; the project|das Projekt
when: today is|heute ist; tomorrow is|morgen ist; yesterday was|gestern war
document: the contract|der Vertrag; the offer|das Angebot; the passport|der Pass; the visa|das Visum
paper: the invoice|die Rechnung; the letter|der Brief; the contract|der Vertrag; the report|der Bericht
text: the book|das Buch; the letter|den Brief; the contract|den Vertrag; the report|den Bericht; the poem|das Gedicht
commodity: coffee|Kaffee; tea|Tee; oil|Öl; wine|Wein; steel|Stahl; wood|Holz; rice|Reis; cotton|Baumwolle; fruit|Obst
venues: the museums|die Museen; the banks|die Banken; the stores|die Läden; the schools|die Schulen
"""
# Territories by article, then the article in the nominative, accusative and dative, "in" (where), "in" or "nach" (to
# where) and "von" with it. Left out: islands and others for which "in" and "auf" or two genders compete.
TERRITORIES = """
- - - - in nach von: DE AT FR ES IT PT BE LU DK SE NO FI PL CZ HU RO BG HR RS SI GR AL EE LV LT IE RU GE AM KZ CN JP KR
  IN PK NP TH VN KH MY ID AF IL JO SY SA KW EG LY TN DZ MA ET KE TZ UG GH CM AO ZM NA ZA CA MX CR PA CO VE EC PE BR BO
  PY UY AR CL AU NZ
m der den dem im in_den vom: IR IQ LB YE SD TD
f die die der in_der in_die von_der: CH TR UA SK MN DO
n das das dem im ins vom: GB
p die die den in_den in_die von_den: US NL AE
"""
# The German names after the article in the nominative (and accusative) and in the dative, where they differ from
# CLDR's; the English names of the same territories take "the".
INFLECTED = {
    "DO": ("Dominikanische Republik", "Dominikanischen Republik"),
    "GB": ("Vereinigte Königreich", "Vereinigten Königreich"),
    "US": ("USA", "USA"),
    "NL": ("Niederlande", "Niederlanden"),
    "AE": ("Vereinigten Arabischen Emirate", "Vereinigten Arabischen Emiraten"),
}
LANGUAGES = "en de fr it es pt nl pl cs sk hu ro bg hr sr sl el tr ru uk fi sv da no is et lt ar he fa hi ur zh ja ko"
CURRENCIES = "EUR USD GBP CHF JPY SEK NOK DKK PLN CZK CAD AUD NZD MXN INR RUB KRW ZAR"  # with safe German plurals
SYMBOLS = "EUR USD GBP JPY"  # the same sign in both languages
STAYS = ["day:900", "week:200", "month:100", "year:40"]
SPANS = ["minute:600", "hour:90", *STAYS]
WHOLE = ["minute", "day", "week", "month", "year", "gram", "millimeter", "foot", "megabyte", "volt"]
TENTHS = ["hour", "celsius", "fahrenheit", "kilometer-per-hour", "mile-per-hour"]
DECIMALS = dict.fromkeys(WHOLE, (0,)) | dict.fromkeys(TENTHS, (0, 1))  # for all other units up to two
DATIVES = {"Tage": "Tagen", "Monate": "Monaten", "Jahre": "Jahren"}  # only durations get one; the others end in -n
LOCALES = EN, DE = Locale("en"), Locale("de")
MAX_PAIRS = 200_000  # more would only repeat the patterns, and take minutes

Word = dict[str, Any]  # "en", "de", other forms by name; "names": its CLDR names; "units" it can be measured in
Fits = Callable[[str, Any], bool]  # whether a value, given with its sort, may occur in the split


class _Redraw(Exception):
    """The words drawn so far do not make a sentence for the split."""


def _both(format_value: Callable[..., str], *args: Any, **options: Any) -> Word:
    """A value formatted by babel in both languages, in NFC and with ordinary spaces for CLDR's no-break spaces."""
    texts = [format_value(*args, locale=locale, **options) for locale in LOCALES]
    en, de = (unicodedata.normalize("NFC", re.sub(r"\s+", " ", text)) for text in texts)
    return {"en": en, "de": de}


def _currency(word: Word, code: str) -> Word:
    """A currency in a sentence: CLDR's "Britische Pfund" has the capital of a heading."""
    german = re.sub(r"\b[A-ZÄÖÜ]\w+sche\b", lambda match: match[0].lower(), word["de"])
    return word | {"de": german, "names": [f"currency:{code}"]}


def _entries(table: str) -> list[list[str]]:
    """The lines of a table as head and body; an indented line continues the one before it."""
    return [line.split(": ", 1) for line in re.sub(r"\n +", " ", table.strip()).splitlines()]


def _territories() -> list[Word]:
    words = []
    for cases, codes in _entries(TERRITORIES):
        gender, *cases = (case.strip("-").replace("_", " ") for case in cases.split(" "))
        for code in codes.split():
            nom, dat = INFLECTED.get(code, (DE.territories[code],) * 2)
            pairs = zip(("de", "acc", "dat", "in", "to", "of"), cases, (nom, nom, dat, dat, nom, dat), strict=True)
            word = {form: f"{case} {name}".strip() for form, case, name in pairs}
            word |= {"from": f"aus {word['dat']}", "ending": "en" if gender == "p" else "t"}
            # CLDR has "Türkiye" since 2022, with "Turkey" as the variant.
            english = "Turkey" if code == "TR" else "the " * (code in INFLECTED) + EN.territories[code]
            words.append(word | {"en": english, "names": [f"territory:{code}"]})
    return words


def _vocabulary() -> dict[str, list[Word]]:
    """The words for every field that is not drawn from numbers, times or dates."""
    words: dict[str, list[Word]] = {"territory": _territories()}
    for sort, rows in _entries(VOCABULARY):
        cells = [(row.strip() + "||||").split("|") for row in rows.split(";")]
        words[sort] = [
            {"en": en, "de": de or en, "units": measures.split(), "adj_en": adj_en, "adj_de": adj_de}
            for en, de, measures, adj_en, adj_de, *_ in cells
        ]
    words["currency"] = [_currency(_both(numbers.get_currency_name, code, 2), code) for code in CURRENCIES.split()]
    tables = {"language": (EN.languages, DE.languages, LANGUAGES.split())}
    tables["month"] = (EN.months["format"]["wide"], DE.months["format"]["wide"], range(1, 13))
    tables["weekday"] = (EN.days["format"]["wide"], DE.days["format"]["wide"], range(7))
    for sort, (english, german, keys) in tables.items():
        words[sort] = [{"en": english[key], "de": german[key], "names": [f"{sort}:{key}"]} for key in keys]
    for word in words["weekday"]:
        word["adverb"] = word["de"].lower() + "s"
    # "aus dem Japanischen ins Deutsche" needs a name that inflects like an adjective: not Hindi or Urdu.
    words["tongue"] = [word for word in words["language"] if word["de"].endswith("sch")]
    return words


WORDS = _vocabulary()
ALL_PATTERNS = [(*head.split(), *sentences.split(" = ")) for head, sentences in _entries(PATTERNS)]


@lru_cache(100_000)
def _measured(value: Decimal, unit: str) -> Word:
    """`value` in `unit`, with the dative that CLDR lacks and the verb that agrees with it."""
    unit, length = ("percent", "short") if unit == "%" else (unit, "long")
    word = _both(units.format_unit, value, unit, length)
    amount, _, noun = word["de"].partition(" ")
    dative = f"{amount} {DATIVES.get(noun, noun)}"
    return word | {"dat": dative, "are": "ist" if value == 1 else "sind", "names": [f"unit:{unit}"]}


def _priced(value: Decimal, code: str, style: str) -> Word:
    """A price with the name ("name") or the sign ("standard") of its currency."""
    return _currency(_both(numbers.format_currency, value, code, format_type=style), code)


def _clock(hour: int, minute: int) -> Word:
    return _both(dates.format_time, time(hour, minute), "short")


def _dated(day: date, style: str) -> Word:
    """A date in digits ("yMd"), with the name of the month ("long"), or with the weekday too ("full")."""
    if style == "yMd":
        return _both(partial(dates.format_skeleton, style), day)
    word = _both(dates.format_date, day, style) | {"names": [f"month:{day.month}"]}
    if style == "full":  # CLDR's "Freitag, 5. März 2021" is for calendars; in a sentence the date takes an article
        word |= {"de": word["de"].replace(", ", ", der "), "dat": word["de"].replace(", ", ", dem ")}
        word["names"].append(f"weekday:{day.weekday()}")
    return word


class _Draw:
    """The words of one sentence, drawn one by one so that their numbers, times and dates fit its split."""

    def __init__(self, rng: Random, fits: Fits, fields: list[str]) -> None:
        self.rng, self.fits = rng, fits
        self.words: dict[str, Word] = {}
        # Vocabulary comes first, because it says in which units the quantity is drawn.
        for field in sorted(fields, key=lambda field: field not in WORDS):
            sort = field.rstrip("2")
            self.words[field] = rng.choice(WORDS[sort]) if sort in WORDS else FIELDS[sort](self)

    def number(self, low: int, high: int, decimals: int = 0) -> Decimal:
        """A number up to `high`; every count of digits that `low` and `high` allow is as likely."""
        tops = [10**digits for digits in range(1, 7) if low < 10**digits < high] + [high]
        for _ in range(50):
            value = Decimal(self.rng.randint(low, self.rng.choice(tops)))
            if decimals:
                value += Decimal(self.rng.randint(1, 10**decimals - 1)).scaleb(-decimals) - (low == 1)
            if self.fits("number", value):
                return value
        raise _Redraw

    def measures(self) -> list[str]:
        """The units of the vocabulary in the sentence."""
        return next(word["units"] for word in self.words.values() if word.get("units"))

    def quantity(self, measures: list[str]) -> Word:
        unit, _, bounds = self.rng.choice(measures).partition(":")
        *least, high = bounds.split("-")
        low = int(least[0]) if least else 1
        if low == 1 and self.rng.randrange(20) == 0 and self.fits("number", Decimal(1)):
            return _measured(Decimal(1), unit)  # the singular
        return _measured(self.number(low, int(high), self.rng.choice(DECIMALS.get(unit, (0, 0, 0, 1, 1, 2)))), unit)

    def unit(self) -> Word:
        one = _measured(Decimal(1), self.rng.choice(self.measures()))
        return {"en": one["en"][2:], "de": one["de"][2:], "names": one["names"]}

    def price(self, codes: str, style: str, high: int) -> Word:
        code = self.rng.choice(codes.split())
        cents = numbers.get_currency_precision(code)
        value = self.number(2, high, self.rng.choice((0, cents, cents))) if cents else self.number(100, 10 * high)
        return _priced(value, code, style)

    def clock(self, first: int, last: int) -> Word:
        hour, minute = self.rng.randint(first, last), self.rng.randrange(60)
        if not self.fits("time", f"{hour % 12}:{minute:02}"):  # AM and PM together: both read the same
            raise _Redraw
        return _clock(hour, minute)

    def date(self, first_year: int, last_year: int, style: str) -> Word:
        bounds = date(first_year, 1, 1).toordinal(), date(last_year, 12, 31).toordinal()
        day = date.fromordinal(self.rng.randint(*bounds))
        if not self.fits("date", day.isoformat()):
            raise _Redraw
        return _dated(day, style)


FIELDS: dict[str, Callable[[_Draw], Word]] = {
    "quantity": lambda draw: draw.quantity(draw.measures()),
    "span": lambda draw: draw.quantity(SPANS),
    "stay": lambda draw: draw.quantity(STAYS),
    "share": lambda draw: _measured(draw.number(2, 90, draw.rng.randrange(3)), "percent"),
    "unit": _Draw.unit,
    "money": lambda draw: draw.price(CURRENCIES, "name", 9999),
    "cash": lambda draw: draw.price(SYMBOLS, "standard", 999),
    "count": lambda draw: _both(numbers.format_decimal, draw.number(100, 9_999_999)),
    "code": lambda draw: dict.fromkeys(("en", "de"), str(draw.number(100, 999_999))),
    "clock": lambda draw: draw.clock(0, 23),
    "opening": lambda draw: draw.clock(6, 11),
    "closing": lambda draw: draw.clock(14, 22),
    "date": lambda draw: draw.date(1950, 2025, "long"),
    "short": lambda draw: draw.date(1950, 2025, "yMd"),
    "day": lambda draw: draw.date(2000, 2049, "full"),
    "deadline": lambda draw: draw.date(2020, 2049, "long"),
}


def _fits(seed: int, split: str, sort: str, value: Any) -> bool:
    """Whether a value belongs to `split`: a tenth of them is for validation, another for the test."""
    if sort == "number":
        # The days of the month and the years are in the training dates, so these numbers are for training alone.
        if value == int(value) and (value < 32 or 1900 <= value < 2100):
            return split == "train"
        value = f"{value.normalize():f}"
    bucket = zlib.crc32(f"{seed}/{sort}/{value}".encode()) % 10
    return split == {0: "valid", 1: "test"}.get(bucket, "train")


def _fill(template: str, words: dict[str, Word], language: str) -> str:
    """`template` with the forms of `words` that its fields select, begun with a capital."""
    text, *pieces = re.split(r"\{(\w+)\.?(\w*)\}", template)  # text, then field, form and text again and again
    for field, form, rest in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        text += words[field][form or language] + rest
    return text[0].upper() + text[1:]


def _sentence(pattern: tuple[str, ...], rng: Random, fits: Fits) -> tuple[dict[str, str], list[str]]:
    """A sentence pair of `pattern` and the CLDR names in it."""
    name, kind, *templates = pattern
    words = _Draw(rng, fits, re.findall(r"\{(\w+)", templates[0])).words
    en, de = (_fill(template, words, language) for template, language in zip(templates, ("en", "de"), strict=True))
    repeats = len({word["en"] for word in words.values()}) < len(words)
    if repeats or (kind == "name" and not fits(name, en)):
        raise _Redraw
    pair = {"en": en, "de": de, "pattern": name, "kind": kind}
    return pair, [name for word in words.values() for name in word.get("names", ())]


def generate(
    seed: int = 1, *, train_pairs: int = 30000, valid_pairs: int = 500, test_pairs: int = 1000
) -> dict[str, list[dict[str, str]]]:
    """The corpus for `seed`: "train", "valid" and "test" lists of {"en", "de", "pattern", "kind"}.

    All English sentences differ. The numbers, times and dates of the validation and test sentences do not occur in
    training, nor do their combinations of names in a pattern; every name does, in another pattern too. The kind says
    what a sentence tests: "number" (amounts, prices, times of day), "date" or "name".
    """
    rng = Random(seed)
    sources: set[str] = set()
    shown: dict[str, set[str]] = {}  # the patterns that show a name in training

    def new_pair(pattern: tuple[str, ...], split: str) -> dict[str, str] | None:
        for _ in range(1000):
            try:
                pair, names = _sentence(pattern, rng, partial(_fits, seed, split))
            except _Redraw:
                continue
            known = split == "train" or all(shown.get(name, set()) - {pair["pattern"]} for name in names)
            if known and pair["en"] not in sources:
                sources.add(pair["en"])
                for name in names if split == "train" else ():
                    shown.setdefault(name, set()).add(pair["pattern"])
                return pair
        return None

    corpus: dict[str, list[dict[str, str]]] = {}
    for split, size in {"train": train_pairs, "valid": valid_pairs, "test": test_pairs}.items():
        if not 0 <= size <= MAX_PAIRS:
            raise ValueError(f"{split}_pairs must be from 0 to {MAX_PAIRS}, not {size}")
        corpus[split] = []
        patterns = deque(ALL_PATTERNS)
        while patterns and len(corpus[split]) < size:
            pattern = patterns.popleft()
            if pair := new_pair(pattern, split):
                corpus[split].append(pair)
                patterns.append(pattern)  # one without new sentences drops out
            elif len(corpus[split]) < len(ALL_PATTERNS):
                break  # but not before every pattern is there
        if len(corpus[split]) < size:
            raise ValueError(
                f"only {len(corpus[split])} of {split}_pairs={size} can be supplied with train_pairs={train_pairs}: "
                "ask for fewer, or for more training pairs, which have to show every name of the other sentences"
            )
        rng.shuffle(corpus[split])
    return corpus
