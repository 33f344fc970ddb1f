"""The project as it is shipped: the wheel, the README, the layers of the house."""

import ast
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from load_script import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
MODULES = sorted((ROOT / "vaswani").glob("*.py"))


def blocks(language: str) -> list[str]:
    return [block.strip() for block in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)]


def test_the_wheel_imports_outside_the_repository(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(ROOT / "vaswani", source / "vaswani", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source)]
    subprocess.run(build, check=True, timeout=180)
    (wheel,) = tmp_path.glob("vaswani-*.whl")
    assert "vaswani/model_card.md" in zipfile.ZipFile(wheel).namelist()
    target = tmp_path / "elsewhere"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True, timeout=180)
    program = (
        "import vaswani, transformers; print(vaswani.__file__); "
        "config = transformers.AutoConfig.for_model('vaswani', vocab_size=9, d_model=8, num_heads=2, num_layers=1, d_ff=8); "
        "print(type(transformers.AutoModelForSeq2SeqLM.from_config(config)).__name__)"
    )
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(target)!r}); {program}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=180)
    path, name = done.stdout.split()
    assert Path(path).is_relative_to(target)
    assert name == "VaswaniForSeq2SeqLM"


def test_readmes_first_two_shell_blocks_are_one_line_each():
    first, second = blocks("bash")[:2]
    assert "\n" not in first and first.startswith("pip install") and "configs/quickstart.yaml" in first
    assert "\n" not in second and second.startswith("pip install") and second.endswith("python -m pytest -q")


def test_files_named_in_readme_shell_blocks_exist():
    named = {word for block in blocks("bash") for word in block.split() if word.startswith(("scripts/", "configs/"))}
    assert "scripts/train.py" in named
    missing = [name for name in named if "NAME" not in name and not (ROOT / name).exists()]
    assert not missing


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder in which `runs/quickstart` is a model: of the right kind, not of the right quality."""
    import torch

    from vaswani import VaswaniConfig, VaswaniForSeq2SeqLM
    from vaswani.tokenization_vaswani import train_tokenizer

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("readme")
    tokenizer = train_tokenizer(["The train to Switzerland leaves at 3:45 PM."], 300)
    config = VaswaniConfig(vocab_size=len(tokenizer), d_model=16, d_ff=16, num_layers=1, num_heads=2)
    for part in (VaswaniForSeq2SeqLM(config), tokenizer):
        part.save_pretrained(folder / "runs" / "quickstart")
    return folder


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_readmes_python_blocks_run(trained, number):
    block = blocks("python")[number]
    done = subprocess.run([sys.executable, "-c", block], cwd=trained, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_readme_lists_every_module():
    listed = set(re.findall(r"^  (\w+\.py) ", README, re.MULTILINE))
    assert listed == {path.name for path in MODULES} - {"__init__.py"}


def imports(path: Path) -> tuple[set[str], set[str]]:
    """Modules of ours (by relative import) and top-level packages that a file imports."""
    ours, others = set(), set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            ours |= {node.module} if node.module else {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            others.add(node.module.split(".")[0])
        elif isinstance(node, ast.Import):
            others |= {alias.name.split(".")[0] for alias in node.names}
    return ours, others


def test_layers_of_the_house():
    graph = {path.stem: imports(path) for path in MODULES if path.stem != "__init__"}
    done: set[str] = set()
    while ready := {name for name in graph.keys() - done if graph[name][0] <= done}:
        done |= ready
    assert done == graph.keys(), "modules import each other in a circle"
    standard = sys.stdlib_module_names
    for name, (ours, others) in graph.items():
        if name.endswith("_vaswani"):  # what the Hub receives
            assert others - standard <= {"torch", "transformers", "tokenizers", "huggingface_hub"}, name
            assert all(module.endswith("_vaswani") for module in ours), name
        assert "accelerate" not in others or name == "checkpoint", name
    for name in ("loss", "optim", "paper", "moses", "score_checks"):
        assert not graph[name][0], name
    assert graph["scoring"][0] <= {"moses", "score_checks"}


def test_scripts_do_not_import_each_other():
    names = {path.stem for path in (ROOT / "scripts").glob("*.py")}
    for path in (ROOT / "scripts").glob("*.py"):
        assert not imports(path)[1] & names, path


def test_a_folder_of_the_same_name_does_not_hide_the_package(tmp_path):
    """As where Python is started beside a clone."""
    (tmp_path / "vaswani").mkdir()
    code = "import vaswani; vaswani.VaswaniConfig"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
