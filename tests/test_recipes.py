"""The recipes as published facts, and a whole recipe of each kind made from small archives with the real names."""

import dataclasses
import gzip
import hashlib
import json
import os
import re
import shutil

import pytest
from load_script import load_script
from test_download import Server, make_tar

from vaswani import recipes
from vaswani.download import Archive, left
from vaswani.recipes import RECIPES, LineCounts, count_lines, parts, resolve
from vaswani.run_config import UserError
from vaswani.wmt import Hub, sides

quiet = {"log": lambda _: None}


# ---------------------------------------------------------------------------------------------------- what is published
def test_line_counts_add_up_to_what_others_counted():
    total = {name: sum(corpus.lines[recipe.lang] for corpus in recipe.train) for name, recipe in RECIPES.items()}
    assert total == {
        "wmt14_en_de": 4_520_620,
        "europarl7_commoncrawl_nc11_en_de": 4_562_102,
        "europarl7_commoncrawl_nc11_en_de_moses": 4_500_966,
        "wmt14_en_fr": 40_842_333,
    }
    assert RECIPES["wmt14_en_fr"].kept == 35_509_317
    for name, recipe in RECIPES.items():
        assert not recipe.kept or recipe.kept < total[name]
        assert not recipe.hub or recipe.hub["train"].rows < total[name]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
def test_every_recipe_is_whole(recipe):
    assert recipe.settings["source_lang"] == "en" and recipe.settings["target_lang"] == recipe.lang
    assert recipe.settings["vocab_size"] == {"de": 37000, "fr": 32000}[recipe.lang]
    assert recipe.valid.exact and recipe.valid.lines[recipe.lang] == 3000
    assert recipe.test.exact and recipe.test.lines[recipe.lang] == 3003  # never the 2,737 of the filtered set
    for _, corpus in parts(recipe):
        algorithm, digest = corpus.archive.digest.split(":")
        assert re.fullmatch(r"[0-9a-f]+", digest)
        assert len(digest) == 2 * hashlib.new(algorithm).digest_size
        assert all(re.fullmatch(r"https://\S+", url) for url in corpus.archive.urls)
        english, other = sides(recipe.lang, corpus.members)
        assert english != other and "{" not in english + other
        assert corpus.lines_from[recipe.lang] and corpus.terms and corpus.archive.digest_from


def test_names_with_a_year_hold_the_data_of_that_year():
    for name, recipe in RECIPES.items():
        newer = any("v11" in corpus.name for corpus in recipe.train)
        assert newer != name.startswith("wmt14_")
    assert {"max_words": 175, "max_ratio": 1.5}.items() <= RECIPES["wmt14_en_fr"].settings.items()


# ------------------------------------------------------------------------------------------------- small archives, served
def text(corpus_name: str, side: str, lines: int) -> bytes:
    return b"".join(f"{corpus_name} {side} {n}\r inside\n".encode() for n in range(lines))


def sgm(side: str, lines: int) -> bytes:
    return (
        f"<set>\n<doc>\n{''.join(f'<seg id={n}>{side}</seg>{chr(10)}' for n in range(lines))}</doc>\n</set>\n".encode()
    )


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A function: `small("wmt14_en_de")` puts in its place the same recipe of a few lines, on a server of our own.

    Training corpora have 10 lines, 20, and so on; a last member of each archive is not wanted.
    """
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("time.sleep", lambda _: None)
    server = Server()

    def make(name: str, **changes) -> Server:
        recipe, contents = RECIPES[name], {}
        corpora = {}
        for number, (_, corpus) in enumerate(parts(recipe), start=1):
            lines = corpus.lines[recipe.lang] if corpus.exact else 10 * number
            corpora[corpus.name] = lines
            for file, side in zip(sides(recipe.lang, corpus.members), ("en", recipe.lang), strict=True):
                data = sgm(side, lines) if file.endswith(".sgm") else text(corpus.name, side, lines)
                data = data.replace(b"inside", b"in@@ si@@ de") if corpus.undo_bpe else data
                data = gzip.compress(data) if file.endswith(".gz") else data
                contents.setdefault(corpus.archive, {})[file] = data
        served = {}
        for archive, members in contents.items():
            path = make_tar(tmp_path / archive.name, members | {"unwanted": b"x"})
            server.files[archive.name] = path.read_bytes()
            digest = f"sha256:{hashlib.sha256(server.files[archive.name]).hexdigest()}"
            urls = (
                tuple(server.address + name for name in ("gone/" + archive.name, archive.name)) if archive.urls else ()
            )
            served[archive] = Archive(archive.name, urls, digest, "", path.stat().st_size)

        def smaller(corpus):
            count = {recipe.lang: corpora[corpus.name]}
            return dataclasses.replace(corpus, archive=served[corpus.archive], lines=count)

        monkeypatch.setitem(
            RECIPES,
            name,
            dataclasses.replace(
                recipe,
                train=tuple(map(smaller, recipe.train)),
                valid=smaller(recipe.valid),
                test=smaller(recipe.test),
                **changes,
            ),
        )
        return server

    yield make
    server.http.shutdown()
    server.http.server_close()


@pytest.mark.parametrize("name", ["wmt14_en_de", "europarl7_commoncrawl_nc11_en_de", "wmt14_en_fr"])
def test_a_whole_recipe_from_its_archives(small, tmp_path, name):
    server, folder, recipe = small(name), tmp_path / "data", RECIPES[name]
    server.breaks = [100]  # one download breaks off
    files = resolve(name, folder, **quiet)
    assert [entry["lines"] for entry in files.corpora] == [
        *(10 * n for n in range(1, len(recipe.train) + 1)),
        3000,
        3003,
    ]
    assert all(entry["verdict"] == "as published" for entry in files.corpora)
    for corpus, (english, other) in zip(recipe.train, files.train, strict=True):
        for path, side in ((english, "en"), (other, recipe.lang)):
            data = path.read_bytes()
            data = gzip.decompress(data) if path.suffix == ".gz" else data
            assert data == text(corpus.name, side, corpus.lines[recipe.lang])
    assert b">en<" in files.test[0].read_bytes() and f">{recipe.lang}<".encode() in files.test[1].read_bytes()
    assert files.settings == dict(recipe.settings)
    json.dumps(files.corpora)
    names = {path.name for path in folder.iterdir()}
    expected = {path.name for pair in (*files.train, files.valid, files.test) for path in pair}
    assert names == expected | {"archives", ".line_counts.json", ".lock"}
    assert any(asked for _, asked in server.asked)

    server.asked.clear()
    shutil.rmtree(folder / "archives")  # no longer needed
    again = resolve(name, folder, **quiet)
    assert again == files and not server.asked


def test_two_recipes_share_what_they_have_in_common(small, tmp_path):
    small("wmt14_en_de")
    server = small("europarl7_commoncrawl_nc11_en_de")
    resolve("wmt14_en_de", tmp_path / "data", **quiet)
    server.asked.clear()
    resolve("europarl7_commoncrawl_nc11_en_de", tmp_path / "data", **quiet)
    assert {name.rpartition("/")[2] for name, _ in server.asked} == {"training-parallel-nc-v11.tgz"}


def test_one_lost_file_is_unpacked_again_from_the_archive_that_is_there(small, tmp_path):
    server = small("wmt14_en_de")
    files = resolve("wmt14_en_de", tmp_path / "data", **quiet)
    lost = files.train[1][1]
    before, server.files = lost.read_bytes(), {}
    lost.unlink()
    assert resolve("wmt14_en_de", tmp_path / "data", **quiet) == files
    assert lost.read_bytes() == before


def test_an_archive_that_cannot_be_had_is_named_and_the_others_stay(small, tmp_path):
    server = small("wmt14_en_de")
    del server.files["training-parallel-nc-v9.tgz"]
    with pytest.raises(
        UserError, match=r"nc-v9\.tgz cannot be downloaded \(.*404.*\): put the file itself into .*archives"
    ):
        resolve("wmt14_en_de", tmp_path / "data", **quiet)
    assert (tmp_path / "data" / "europarl-v7.de-en.en").exists()
    shutil.copy(tmp_path / "training-parallel-nc-v9.tgz", tmp_path / "data" / "archives")
    assert len(resolve("wmt14_en_de", tmp_path / "data", **quiet).train) == 3


def test_a_disk_too_small_for_all_of_it_is_noticed_before_the_first_download(small, tmp_path, monkeypatch):
    server = small("wmt14_en_de")
    sizes = sum(archive.size for archive in {corpus.archive for _, corpus in parts(RECIPES["wmt14_en_de"])})
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("", (), {"free": sizes - 1}))
    with pytest.raises(UserError, match="what is left to download of wmt14_en_de needs"):
        resolve("wmt14_en_de", tmp_path / "data", **quiet)
    assert not server.asked


def test_what_is_downloaded_in_part_needs_no_room_again(tmp_path):
    archive = Archive("a.tgz", (), "sha256:", "", 1000)
    assert left(archive, tmp_path) == 1000
    (tmp_path / "a.tgz.part").write_bytes(b"x" * 400)
    assert left(archive, tmp_path) == 600
    assert left(dataclasses.replace(archive, size=None), tmp_path) == 0


# ----------------------------------------------------------------------------------------------------- files of the user
def test_files_are_found_by_name_anywhere_and_compressed(small, tmp_path):
    server = small("wmt14_en_fr")
    made = resolve("wmt14_en_fr", tmp_path / "made", **quiet)
    server.asked.clear()
    mine = tmp_path / "mine"
    (mine / "deep" / "er").mkdir(parents=True)
    for number, path in enumerate(path for pair in made.train for path in pair):
        if path.suffix == ".gz":
            (mine / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
        elif number % 2:
            (mine / "deep" / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        else:
            shutil.copy(path, mine / "deep" / "er")
    for number, name in ((3000, "newstest2013.fr-en"), (3003, "newstest2014.en-fr")):
        for side in ("en", "fr"):
            (mine / f"{name}.{side}").write_bytes(text("news", side, number))
    found = resolve("wmt14_en_fr", mine, "files", **quiet)
    assert not server.asked
    counts = [entry["lines"] for entry in made.corpora]
    assert [entry["lines"] for entry in found.corpora] == counts
    assert [pair[0].name.removesuffix(".gz") for pair in found.train] == [
        pair[0].name.removesuffix(".gz") for pair in made.train
    ]


def test_archives_of_the_user_are_unpacked_and_what_is_missing_is_listed(small, tmp_path):
    server, mine = small("wmt14_en_de"), tmp_path / "mine"
    mine.mkdir()
    for name in ("training-parallel-europarl-v7.tgz", "training-parallel-commoncrawl.tgz"):
        shutil.copy(tmp_path / name, mine)
    with pytest.raises(UserError) as error:
        resolve("wmt14_en_de", mine, "files", **quiet)
    assert "news-commentary-v9.de-en.en, news-commentary-v9.de-en.de (of training-parallel-nc-v9.tgz)" in str(
        error.value
    )
    assert "newstest2014-deen-ref.de.sgm" in str(error.value) and "europarl" not in str(error.value)
    for name in ("training-parallel-nc-v9.tgz", "wmt13-test.tgz"):
        shutil.copy(tmp_path / name, mine)
    shutil.copy(mine / "wmt13-test.tgz", mine / "wmt14-test-full.tgz")  # not what its name says
    with pytest.raises(UserError, match=r"lacks newstest2014-deen-src\.en\.sgm, newstest2014-deen-ref\.de\.sgm \(of"):
        resolve("wmt14_en_de", mine, "files", **quiet)
    shutil.copy(tmp_path / "wmt14-test-full.tgz", mine)
    assert len(resolve("wmt14_en_de", mine, "files", **quiet).train) == 3
    assert not server.asked


def test_the_authors_archive_becomes_words(small, tmp_path):
    name = "europarl7_commoncrawl_nc11_en_de_moses"
    small(name)
    with pytest.raises(UserError, match=r"wmt16_en_de\.tar\.gz cannot be downloaded \(it has no address any more\)"):
        resolve(name, tmp_path / "data", **quiet)
    (tmp_path / "mine").mkdir()
    shutil.copy(tmp_path / "wmt16_en_de.tar.gz", tmp_path / "mine")
    files = resolve(name, tmp_path / "mine", "files", **quiet)
    assert [path.name for path in files.train[0]] == ["train.tok.clean.en", "train.tok.clean.de"]
    corpus = RECIPES[name].train[0]
    assert files.train[0][1].read_bytes() == text(corpus.name, "de", 10)
    (tmp_path / "zipped").mkdir()
    for path in (tmp_path / "mine").glob("*.[de][en]"):
        if path not in files.train[0]:
            (tmp_path / "zipped" / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    zipped = resolve(name, tmp_path / "zipped", "files", **quiet)
    assert [path.read_bytes() for path in zipped.train[0]] == [path.read_bytes() for path in files.train[0]]
    assert resolve(name, tmp_path / "mine", "files", **quiet) == files


def test_two_files_of_one_name_are_not_guessed_between(small, tmp_path):
    small("wmt14_en_de")
    files = resolve("wmt14_en_de", tmp_path / "data", **quiet)
    (tmp_path / "data" / "copy").mkdir()
    shutil.copy(files.train[0][0], tmp_path / "data" / "copy")
    with pytest.raises(UserError, match=r"copy/europarl-v7\.de-en\.en and .* have the same name"):
        resolve("wmt14_en_de", tmp_path / "data", **quiet)


# ---------------------------------------------------------------------------------------------------------------- counts
def test_other_counts_are_reported_and_remembered_until_a_file_changes(small, tmp_path, monkeypatch):
    small("wmt14_en_de")
    files = resolve("wmt14_en_de", tmp_path / "data", **quiet)
    for path in files.train[1]:
        path.write_bytes(path.read_bytes() + b"one more")
    log = []
    changed = resolve("wmt14_en_de", tmp_path / "data", log=log.append)
    assert changed.corpora[1]["lines"] == 21 and changed.corpora[1]["verdict"] == "1 more than the 20 published"
    assert "Common Crawl: 21 pairs, 1 more than the 20 published" in log
    monkeypatch.setattr(recipes, "count_lines", lambda path: pytest.fail(f"{path} is counted again"))
    assert resolve("wmt14_en_de", tmp_path / "data", **quiet) == changed


def test_a_changed_file_of_the_same_size_is_counted_again(tmp_path):
    path, count = tmp_path / "a", LineCounts(tmp_path)
    path.write_bytes(b"1\n2\n")
    assert count(path) == 2
    path.write_bytes(b"1 2\n")
    os.utime(path, ns=(0, 0))
    assert count(path) == LineCounts(tmp_path)(path) == 1


def test_sides_of_unequal_length_are_an_error(small, tmp_path):
    small("wmt14_en_de")
    german = resolve("wmt14_en_de", tmp_path / "data", **quiet).train[0][1]
    german.write_bytes(german.read_bytes().rpartition(b"\n")[0].rpartition(b"\n")[0])
    with pytest.raises(UserError, match=r"de-en\.en has 10 lines and .*de-en\.de 9 .10 are published.*cut short"):
        resolve("wmt14_en_de", tmp_path / "data", **quiet)


def test_the_filtered_test_set_is_refused(small, tmp_path):
    small("wmt14_en_de")
    for path, side in zip(resolve("wmt14_en_de", tmp_path / "data", **quiet).test, ("en", "de"), strict=True):
        path.write_bytes(sgm(side, 2737))
    with pytest.raises(UserError, match=r"has 2,737 segments where the set has 3,003"):
        resolve("wmt14_en_de", tmp_path / "data", **quiet)


def test_only_line_feeds_end_lines(tmp_path):
    (tmp_path / "a").write_bytes("one\r two\u2028\x85 three\x0b\r\nfour\n\nfive".encode())
    assert count_lines(tmp_path / "a") == 4
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"one\ntwo\n")[:-9])
    with pytest.raises(UserError, match="is it whole"):
        count_lines(tmp_path / "b.gz")


# ------------------------------------------------------------------------------------------------------------ the Hub, CLI
@pytest.fixture
def on_hub(tmp_path):
    """A folder that `datasets` loads as it loads wmt/wmt14, with 5 training rows."""
    import datasets

    folder, config = tmp_path / "wmt14", "configs:\n- config_name: de-en\n  data_files:\n"
    for split, rows in (("train", 5), ("validation", 3000), ("test", 3003)):
        pairs = [{"de": f"{split} {n}\nDeutsch", "en": f"{split} {n}"} for n in range(rows)]
        folder.mkdir(exist_ok=True)
        datasets.Dataset.from_dict({"translation": pairs}).to_parquet(folder / f"{split}.parquet")
        config += f"  - split: {split}\n    path: {split}.parquet\n"
    (folder / "README.md").write_text(f"---\n{config}---\n", encoding="utf-8")
    return {
        split: Hub(str(folder), "de-en", name, rows)
        for split, name, rows in (("train", "train", 6), ("valid", "validation", 3000), ("test", "test", 3003))
    }


def test_text_of_the_hub_is_written_once(on_hub, small, tmp_path, monkeypatch):
    server = small("wmt14_en_de", hub=on_hub)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    files = resolve("wmt14_en_de", tmp_path / "data", "hub", **quiet)
    assert not server.asked
    assert [[path.name for path in pair] for pair in files.train] == [["wmt14.de-en.train.en", "wmt14.de-en.train.de"]]
    assert files.train[0][0].read_bytes() == b"".join(b"train %d\n" % n for n in range(5))
    assert files.train[0][1].read_bytes() == b"".join(b"train %d Deutsch\n" % n for n in range(5))
    assert [entry["lines"] for entry in files.corpora] == [5, 3000, 3003]
    assert files.corpora[0]["verdict"] == "1 fewer than the 6 published"
    shutil.rmtree(tmp_path / "wmt14")
    assert resolve("wmt14_en_de", tmp_path / "data", "hub", **quiet) == files


def test_what_the_hub_lacks_is_said(tmp_path):
    with pytest.raises(UserError, match=r"no dataset of the Hub holds .*_moses: take recipe_source archives or files"):
        resolve("europarl7_commoncrawl_nc11_en_de_moses", tmp_path, "hub", **quiet)
    with pytest.raises(UserError, match=r"cannot load wmt/wmt14 .*: .*; or take recipe_source archives"):
        resolve("wmt14_en_fr", tmp_path, "hub", **quiet)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (("wmt15", "--to", "x"), "there is no recipe 'wmt15': choose one of wmt14_en_de"),
        (("wmt14_en_de",), "give a recipe and --to FOLDER"),
        (("wmt14_en_de", "--to", "{}/none", "--source", "files"), "there is no folder"),
    ],
)
def test_wrong_commands_end_with_one_sentence(tmp_path, capsys, arguments, sentence):
    assert load_script("fetch").main([argument.format(tmp_path) for argument in arguments]) == 2
    assert capsys.readouterr().err.startswith(f"error: {sentence}")


def test_the_command_lists_and_fetches(small, tmp_path, capsys):
    fetch = load_script("fetch")
    assert fetch.main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert all(f"{name}: " in listed for name in RECIPES)
    assert "training-giga-fren.tar (2,595 MB, sha256 [" in listed and "22,520,376 pairs" in listed
    assert "published, not verified here" in listed
    small("wmt14_en_de")
    assert fetch.main(["wmt14_en_de", "--to", str(tmp_path / "data")]) == 0
    printed = capsys.readouterr().out
    assert "wmt14_en_de: 60 training pairs in" in printed and "vocab_size: 37000" in printed
