"""From a finished run to the Hub: what is assembled, what is refused, what an upload leaves behind that was cut short."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import hub_server
import huggingface_hub.constants as hub_constants
import pytest
import torch
import yaml
from load_script import ROOT, load_script
from safetensors.torch import save_file

from vaswani import publishing
from vaswani.publish_checks import ALLOWED, inspect, published, verify
from vaswani.run_config import UserError
from vaswani.run_record import cleaned
from vaswani.uploading import upload

SAID = ["--license", "cc0-1.0", "--data-note", "Numbers in words, made for a test."]
NAME = "tester/numbers"


@pytest.fixture(scope="module")
def assembled(corpus, tmp_path_factory):
    """A real run, trained, averaged and scored by the scripts, and published as far as that goes without the Hub."""
    run = tmp_path_factory.mktemp("published") / "run"
    words = ["--output_dir", str(run), "--max_steps", "60", "--save_steps", "30", "--eval_steps", "60"]
    assert load_script("train").main([str(corpus / "config.yaml"), *words]) == 0
    assert load_script("average_checkpoints").main([str(run), "--last", "2"]) == 0
    assert load_script("evaluate").main([str(run / "averaged"), "--split", "test", "--record"]) == 0
    assert load_script("publish").main([str(run), "--repo-id", NAME, *SAID, "--dry-run"]) == 0
    return run


@pytest.fixture
def hub(monkeypatch):
    with hub_server.HubServer() as server:
        monkeypatch.setattr(hub_constants, "ENDPOINT", server.address)
        monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(hub_constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", hub_server.TOKEN)
        monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)  # between tries
        yield server


@pytest.fixture
def publish(assembled, hub, capsys):
    """A function: publishes the run, with more words; returns the exit code and what was said."""

    def call(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = load_script("publish").main([str(assembled), "--repo-id", NAME, *SAID, *words])
        said = capsys.readouterr()
        return code, said.out + said.err

    return call


# ------------------------------------------------------------------------------------------------- what is assembled
def test_the_folder_is_whole_and_private_to_nobody(assembled, corpus):
    files = {path.name: path for path in published(assembled / "hub")}
    assert files.keys() == ALLOWED - {"bleu_curve.png"} | {"model.safetensors"}
    text = {
        name: path.read_text(encoding="utf-8")
        for name, path in files.items()
        if path.suffix not in (".png", ".safetensors")
    }
    for name, content in text.items():
        assert str(corpus) not in content and str(assembled) not in content and str(Path.home()) + "/" not in content, (
            name
        )
    settings = yaml.safe_load(text["config.yaml"])
    assert settings["data_dir"] == corpus.name and settings["max_steps"] == 60
    environment = json.loads((assembled / "environment.json").read_text())
    assert environment.keys() - json.loads(text["environment.json"]).keys() == {"host", "process"}
    assert json.loads(text["results.json"]) == json.loads((assembled / "results.json").read_text())
    lines = {
        line
        for split in ("train", "valid", "test")
        for lang in ("en", "de")
        for line in (corpus / f"{split}.{lang}").read_text().splitlines()
    }
    assert len(lines) > 1000 and not [line for line in lines if line in text["README.md"]]
    assert "average of steps 30, 60" in text["README.md"] and SAID[-1] in text["README.md"]


def test_the_same_things_make_the_same_folder(assembled, tmp_path, monkeypatch, capsys):
    before = publishing.digests(assembled / "hub")
    words = [str(assembled), "--repo-id", NAME, *SAID, "--dry-run"]
    assert load_script("publish").main(words) == 0
    assert "assembled and verified before" in capsys.readouterr().out
    monkeypatch.setattr(publishing, "verify", lambda *_: None)
    assert load_script("publish").main([*words, "--output", str(tmp_path / "again")]) == 0
    assert publishing.digests(tmp_path / "again") == before
    (tmp_path / "again" / "README.md").write_text("typed by hand")
    (tmp_path / "again" / "more.bin").write_bytes(b"")
    assert load_script("publish").main([*words, "--output", str(tmp_path / "again")]) == 0
    assert publishing.digests(tmp_path / "again") == before
    capsys.readouterr()
    assert load_script("publish").main([*words, "--output", str(assembled)]) == 2
    assert "was not made by publish.py" in capsys.readouterr().err and (assembled / "config.yaml").exists()


def test_verification_finds_what_is_missing_or_other(assembled, tmp_path):
    folder = shutil.copytree(assembled / "hub", tmp_path / "hub")
    with pytest.raises(UserError, match="without this package: generate gave"):
        verify(folder, NAME, [("A sentence.", "what no model would say")])
    (folder / "search_vaswani.py").unlink()
    with pytest.raises(UserError, match=r"does not work in a clean process .*search_vaswani"):
        verify(folder, NAME, [("A sentence.", "")])


SECRETS = [
    "hf_" + "aBcDeFgHiJ" * 4,
    "AKIA" + "ABCDEFGH12345678",
    "-----BEGIN OPENSSH " + "PRIVATE KEY-----",
    "ghp_" + "a1B2c3D4e5F6" * 3,
    "https://user:" + "pass@host.example/x",
    'wandb_api_key: "' + "0123456789abcdef" * 2 + '"',
    "sk-" + "abcdefghij0123456789",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("name", ["config.yaml", "README.md"])
def test_secrets_are_refused(name, secret, tmp_path):
    (tmp_path / name).write_text(f"seed: 1\nnote: {secret}\n")
    with pytest.raises(UserError, match=f"{name}, line 2, has what looks like"):
        inspect(tmp_path)


@pytest.mark.parametrize(
    "path", ["/home/someone/data", "/scratch", "~/data/train.en", "C:\\Users\\someone", '"/tmp/x y"', "(/mnt/a)"]
)
def test_absolute_paths_are_refused_and_cleaned(path, tmp_path):
    (tmp_path / "results.json").write_text(f"{{}}\n{path}\n")
    with pytest.raises(UserError, match=r"results.json, line 2, names a path"):
        inspect(tmp_path)
    (tmp_path / "results.json").write_text(cleaned(path))
    inspect(tmp_path)


def test_what_only_looks_like_a_path_is_let_through(tmp_path):
    (tmp_path / "README.md").write_text(
        "and/or, 1 / 2, </s>, https://example.org/a/b, runs/mine, d_model / h, org/name, ../x"
    )
    inspect(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pytorch_model.bin", "may run code"),
        ("weights.pt", "may run code"),
        ("optimizer.safetensors", "part of a checkpoint"),
        ("checkpoints/step_1/model.safetensors", "part of a checkpoint"),
        ("removed.json", "nothing that a published model consists of"),
        ("samples/test.source", "nothing that a published model consists of"),
        ("attention/step_1.png", "nothing that a published model consists of"),
    ],
)
def test_other_files_are_refused(name, message, tmp_path):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(UserError, match=message):
        inspect(tmp_path)


def test_what_the_weights_say_of_themselves_is_read_too(tmp_path):
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors", {"from": "/home/someone/run"})
    with pytest.raises(UserError, match="names a path"):
        inspect(tmp_path)


# -------------------------------------------------------------------------------------------------------- the upload
def local(assembled) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in published(assembled / "hub")}


def test_one_private_commit_and_a_tag(publish, hub, assembled, monkeypatch, tmp_path):
    code, said = publish()
    assert code == 0, said
    assert "logged in as tester" in said and f"{hub.address}/{NAME}/tree/v1" in said
    repo = hub.repos[NAME]
    assert repo["private"] and [commit["message"] for commit in repo["commits"]] == ["initial commit", "numbers v1"]
    assert repo["tags"] == {"v1": repo["commits"][-1]["oid"]}
    content = hub.content(NAME)
    content.pop(".gitattributes")
    assert content == local(assembled)
    assert hub.count("POST", "/api/validate-yaml") >= 1
    code, said = publish()
    assert code == 0 and "holds exactly this already" in said
    assert len(repo["commits"]) == 2 and repo["tags"] == {"v1": repo["commits"][-1]["oid"]}
    monkeypatch.setattr(publishing, "verify", lambda *_: None)  # seen elsewhere, and slow
    assert publish("--tag", "v2", "--update", "--output", str(tmp_path / "v2"))[0] == 0
    assert repo["tags"].keys() == {"v1", "v2"} and 'revision="v2"' in hub.content(NAME)["README.md"].decode()


def test_public_when_asked(publish, hub):
    assert publish("--public")[0] == 0 and not hub.repos[NAME]["private"]


@pytest.mark.parametrize(
    ("method", "path", "status", "times"),
    [
        ("PUT", "/lfs/", None, 100),  # the line goes dead while weights and figures are sent
        ("PUT", "/lfs/", 403, 1),
        ("POST", "/commit/", None, 1),
        ("POST", "/commit/", 500, 1),
        ("POST", "/preupload/", 503, 100),
        ("POST", "/tag/", 500, 1),
    ],
)  # fmt: skip
def test_a_cut_upload_is_finished_by_the_same_command(publish, hub, assembled, method, path, status, times):
    hub.fail(method, path, status, times)
    code, said = publish()
    assert (code == 2 and "error: " in said and "the same command" in said.splitlines()[-1]) or status == 403, said
    commits = hub.repos[NAME]["commits"]
    assert len(commits) == (2 if path == "/tag/" else 1) and not hub.repos[NAME]["tags"]  # all or nothing
    hub.failures.clear()
    sent = hub.count("PUT", "/lfs/")
    code, said = publish()
    assert code == 0, said
    assert [commit["message"] for commit in commits] == ["initial commit", "numbers v1"]
    assert hub.repos[NAME]["tags"] == {"v1": commits[-1]["oid"]}
    assert hub.content(NAME).items() >= local(assembled).items()
    if path in ("/commit/", "/tag/"):
        assert hub.count("PUT", "/lfs/") == sent == 3  # weights and two figures: not sent twice


def test_an_update_takes_the_place_of_everything(publish, hub, assembled):
    hub.add(NAME, files={"README.md": b"another", "pytorch_model.bin": b"old"})
    code, said = publish()
    assert code == 2 and "holds something else already (README.md, pytorch_model.bin, ...)" in said
    assert len(hub.repos[NAME]["commits"]) == 2 and not hub.count("PUT", "/lfs/")
    assert publish("--update")[0] == 0
    assert (
        hub.content(NAME).keys() == local(assembled).keys() | {".gitattributes"}
        and len(hub.repos[NAME]["commits"]) == 3
    )


def test_a_tag_of_something_else_stays(publish, hub):
    repo = hub.add(NAME)
    repo["tags"]["v1"] = repo["commits"][0]["oid"]
    code, said = publish()
    assert code == 2 and "has a tag v1 already, of other content" in said and len(repo["commits"]) == 1


def test_what_is_public_already_needs_a_word(publish, hub):
    hub.add(NAME, private=False)
    code, said = publish()
    assert code == 2 and "exists and is public: add --public" in said and len(hub.repos[NAME]["commits"]) == 1


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (None, "`hf auth login`, with a token that may write"),
        ("hf_wrong", "does not know this token"),
        (hub_server.READ_ONLY, "may not write there"),
    ],
)
def test_the_token(publish, hub, monkeypatch, tmp_path, token, message):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(hub_constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    code, said = publish()
    assert code == 2 and message in said.splitlines()[-1] and not hub.repos


def test_no_network(publish, hub, monkeypatch):
    monkeypatch.setattr(hub_constants, "ENDPOINT", "http://127.0.0.1:9")
    code, said = publish()
    assert code == 2 and "the Hub cannot be reached" in said and "Traceback" not in said
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in publish()[1]


def test_a_card_that_the_hub_refuses(hub, assembled, tmp_path):
    folder = shutil.copytree(assembled / "hub", tmp_path / "hub")
    card = (folder / "README.md").read_text(encoding="utf-8")
    (folder / "README.md").write_text(card.replace("license: cc0-1.0", "license: [1]"), encoding="utf-8")
    with pytest.raises(UserError, match=r"does not accept this .*license"):
        upload(folder, NAME, "v1")
    assert not hub.repos


def test_from_the_shell(assembled, hub):
    environment = os.environ | {"HF_ENDPOINT": hub.address, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": hub_server.TOKEN}
    environment.pop("HF_HUB_OFFLINE")
    command = [sys.executable, str(ROOT / "scripts" / "publish.py"), str(assembled), "--repo-id", NAME, *SAID]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(hub.repos[NAME]["commits"]) == 2 and "v1" in hub.repos[NAME]["tags"]
