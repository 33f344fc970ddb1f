"""Every config of the repository loads and describes a model that can be built."""

from pathlib import Path

import pytest
import torch
from load_script import ROOT

from vaswani import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani.run_config import read_config, read_yaml

CONFIGS = sorted(path for path in (ROOT / "configs").rglob("*.yaml") if path.parent.name != "accelerate")


def test_there_are_configs():
    assert {"quickstart", "multi30k_en_de", "multi30k_en_fr"} <= {path.stem for path in CONFIGS}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_config_loads(path: Path):
    config = read_config([str(path)])
    with torch.device("meta"):
        model = VaswaniForSeq2SeqLM(VaswaniConfig(**vars(config.model), vocab_size=config.data.vocab_size))
    assert model.num_parameters() > 0
    assert Path(read_yaml(path)["output_dir"]) == Path("runs") / path.relative_to(ROOT / "configs").with_suffix("")
    assert "accelerate launch" in path.read_text(encoding="utf-8").split("\n\n")[0]
