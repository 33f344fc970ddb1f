import pytest
from load_script import load_script

from vaswani.run_config import UserError, flat, read_config, write_yaml


def write(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_command_line_wins_over_file_over_defaults(tmp_path):
    path = write(tmp_path, "d_model: 128\nadam_eps: 1e-8\ntrain_files: [a, b]\nfresh: true\nd_k:\n")
    config = read_config([path])
    assert config.name == "mine"
    assert (config.model.d_model, config.model.d_ff, config.model.d_k) == (128, 2048, None)
    assert (config.training.adam_eps, config.training.fresh, config.data.train_files) == (1e-8, True, ["a", "b"])
    config = read_config([path, "--d_model", "64", "--train_files", "c", "--fresh", "false"])
    assert (config.model.d_model, config.training.fresh, config.data.train_files) == (64, False, ["c"])


def test_defaults_are_the_papers_base():
    config = read_config(["/dev/null"])
    assert vars(config.model) == {
        "d_model": 512, "d_ff": 2048, "num_layers": 6, "num_decoder_layers": None, "num_heads": 8, "d_k": None,
        "d_v": None, "dropout": 0.1, "position_encoding": "interleaved", "max_position_embeddings": 1024,
        "attention_bias": True, "layer_norm_eps": 1e-6, "tie_word_embeddings": True,
    }  # fmt: skip
    training = config.training
    assert (training.max_steps, training.tokens_per_batch, training.warmup_steps) == (100_000, 25_000, 4000)
    assert (training.adam_beta1, training.adam_beta2, training.adam_eps) == (0.9, 0.98, 1e-9)
    assert (training.lr_factor, training.label_smoothing, training.num_beams) == (1.0, 0.1, 4)


def test_resolved_settings_read_back(tmp_path):
    config = read_config([write(tmp_path, "d_model: 32\ntrain_files: [x]\nsource_lang: 'no'\n")])
    write_yaml(tmp_path / "again.yaml", config)
    assert flat(read_config([str(tmp_path / "again.yaml")])) == flat(config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("d_modle: 3", "unknown key 'd_modle': did you mean 'd_model'"),
        ("quux: 3", "unknown key 'quux'; see --help"),
        ("model:\n  d_model: 3", "must hold flat"),
        ("- 1\n- 2", "must hold flat"),
        ("a: [", "cannot read .* as YAML"),
        ("mixed_precision: no", r"mine\.yaml: mixed_precision: YAML reads yes, no, .* as truth values: .* in quotes"),
        ("source_lang: no", r"mine\.yaml: source_lang: YAML reads"),
        ("train_files: [a, on]", r"mine\.yaml: train_files: YAML reads"),
        ("d_model: true", r"mine\.yaml: d_model: YAML reads"),
        ("seed: 1e3", r"mine\.yaml: seed: invalid int value: '1e3'; --help"),
        ("d_model: wide", r"mine\.yaml: d_model: invalid int value: 'wide'"),
        ("d_model: [1, 2]", r"mine\.yaml: d_model takes one value, not a list"),
        ("fresh: maybe", r"mine\.yaml: fresh: .*maybe"),
        ("on_bad_utf8: maybe", r"mine\.yaml: on_bad_utf8: invalid choice: 'maybe'"),
    ],
)
def test_errors(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        read_config([write(tmp_path, text)])


@pytest.mark.parametrize("script", ["prepare_data", "train"])
def test_scripts_end_with_code_2(tmp_path, capsys, script):
    main = load_script(script).main
    assert main([str(tmp_path / "none.yaml")]) == 2
    assert "there is no config" in capsys.readouterr().err
    path = write(tmp_path, "d_model: 64")
    for arguments, message in (
        ([path, "--d_model", "wide"], "d_model: invalid int value: 'wide'"),
        ([path, "--no_such_option", "1"], "unrecognized arguments: --no_such_option 1"),
        ([path, "--warmup_step", "5"], "unrecognized arguments: --warmup_step 5: did you mean '--warmup_steps'?"),
        ([path, "--attention", "none"], "attention: invalid choice: 'none'"),
        ([], "the following arguments are required: config"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {message}") and error.count("\n") == 1


def test_what_yaml_reads_as_something_else_can_be_quoted(tmp_path):
    text = "mixed_precision: 'no'\nsource_lang: \"no\"\nfresh: on\ntrain_files: []\nreport_to:\n"
    config = read_config([write(tmp_path, text)])
    assert (config.training.mixed_precision, config.data.source_lang, config.training.fresh) == ("no", "no", True)
    assert config.data.train_files is config.training.report_to is None
    assert config.given == {"mixed_precision", "source_lang", "fresh"}
