"""Attention weights of a model, and `pe-bench attention`."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import some_slow
from made_runs import SCORE, put
from matplotlib.figure import Figure
from torch import Tensor

import pe_bench
from pe_bench.cli import main
from pe_bench.decoder import model as decoder
from pe_bench.errors import InputError
from pe_bench.registry import catalogue
from pe_bench.reporting import attention_maps, panels
from pe_bench.results.splits import ID, OOD
from pe_bench.runs import shown_row
from pe_bench.runs.options import MovedPaths, RunOptions
from pe_bench.runs.resolve import resolve
from pe_bench.runs.shown_row import ShownRow, name_tokens, row_of_task, row_of_text
from pe_bench.sequences.eval_points import EvalPoint
from pe_bench.text.tokenizer import ByteTokenizer

CONFIG = pe_bench.ModelConfig(
    layers=2,
    heads=4,
    width=32,
    mlp_width=32,
    vocab_size=260,
    train_length=16,
    digit_ids=(48, 49),
    separator_ids=(10,),
)
FLIPFLOP = ["run", "--encoding", "tape", "--task", "flipflop:samples=5", "--train.steps", "2"]
SMALL = ["--no-report", "--model.layers", "2", "--model.width", "32"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PE_BENCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Collect the figures that commands save; the files stay empty."""
    figures: list[Figure] = []

    def save(figure: Figure, paths: list[Path]) -> None:
        figures.append(figure)
        for path in paths:
            path.touch()

    monkeypatch.setattr(panels, "save", save)
    return figures


def make_model(spec: str, **shape: Any) -> pe_bench.Decoder:
    """Return a model whose weights are large enough for uneven attention."""
    config = CONFIG.changed(**shape)
    model = pe_bench.Decoder(config, pe_bench.load_encoding(spec))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def save_model(spec: str = "rope", **shape: Any) -> None:
    """Save a model with a byte tokenizer to the folder `saved`."""
    pe_bench.save_checkpoint(make_model(spec, **shape), "saved", spec, tokenizer=ByteTokenizer())


@pytest.mark.parametrize("name", some_slow(catalogue.names("encoding")))
def test_weights_times_values_are_the_output_of_attention(name: str) -> None:
    model = make_model(name)
    tokens = torch.randint(100, (2, 24))
    values: list[Tensor] = []
    outputs: list[Tensor] = []
    for block in model.layers:
        attention: Any = block.self_attn
        attention.v_proj.register_forward_hook(lambda module, args, out: values.append(out))
        attention.o_proj.register_forward_pre_hook(lambda module, args: outputs.append(args[0]))
    with torch.no_grad():
        model(tokens)
        expected = list(zip(values, outputs, strict=True))
        weights = model.attention_weights(tokens)
    assert len(weights) == CONFIG.layers
    for layer, (value, output) in zip(weights, expected, strict=True):
        assert layer.shape == (2, CONFIG.heads, 24, 24)
        assert not layer.triu(1).any()
        v = value.unflatten(-1, (CONFIG.heads, -1)).transpose(1, 2)  # (B, H, T, D)
        attended = (layer.to(v.dtype) @ v).transpose(1, 2).flatten(2)  # (B, T, C)
        torch.testing.assert_close(attended, output, atol=1e-5, rtol=1e-4)
        sums = layer.sum(-1)  # (B, H, T)
        assert (sums < 1 + 1e-5).all()
        if not (model.encoding.overrides("sink") or model.encoding.overrides("normalise")):
            torch.testing.assert_close(sums, torch.ones_like(sums))


def test_weights_are_refused_in_training_and_above_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("rope")
    tokens = torch.zeros(2, 8, dtype=torch.long)
    monkeypatch.setattr(decoder, "WEIGHTS", 2 * 2 * 4 * 8 * 8)
    assert len(model.attention_weights(tokens)) == 2
    with pytest.raises(InputError, match="2 x 9 tokens in 2 layers of 4 heads are 1,296 numbers"):
        model.attention_weights(torch.zeros(2, 9, dtype=torch.long))
    with pytest.raises(InputError, match=r"call model.eval\(\) first"):
        model.train().attention_weights(tokens)


@pytest.mark.slow
def test_a_text_has_its_tokens_on_the_axes(
    drawn: list[Figure], capsys: pytest.CaptureFixture[str]
) -> None:
    save_model()
    assert (
        main(["attention", "saved", "--text", "a b\n2", "--layers", "1", "--heads", "0", "3"]) == 0
    )
    assert capsys.readouterr().out.strip() == "attention-saved.png"
    assert Path("attention-saved.png").exists()
    (figure,) = drawn
    assert "trained with up to 16 tokens, so with all" in figure.get_suptitle()
    maps = [axis for axis in figure.axes if axis.get_title("left")]
    assert [axis.get_title("left") for axis in maps] == ["layer 1, head 0", "layer 1, head 3"]
    names = [label.get_text() for label in maps[0].get_yticklabels()]
    assert names == ["<bos>", "a", "\N{OPEN BOX}", "b", "\\n", "2"]
    with torch.no_grad():
        ids = torch.tensor([[ByteTokenizer().bos, *b"a b\n2"]])
        weights = pe_bench.open_checkpoint("saved").load().attention_weights(ids)
    shown: Any = maps[1].images[0].get_array()
    assert shown.mask.sum() == 15
    torch.testing.assert_close(torch.tensor(shown.filled(0)), weights[1][0, 3])


@pytest.mark.slow
def test_a_row_beyond_the_trained_length_is_marked(drawn: list[Figure]) -> None:
    pe_bench.save_checkpoint(make_model("tape", vocab_size=130, train_length=32), "saved", "tape")
    assert main(["attention", "saved", "--task", "mqar:samples=3", "--item", "2"]) == 0
    (figure,) = drawn
    assert figure.get_suptitle().splitlines() == [
        "Attention weights of saved · mqar",
        "grid, 64 tokens, 2 pairs, item 2: 64 tokens in all",
        "dashed: trained with up to 32 tokens",
    ]
    maps = [axis for axis in figure.axes if axis.get_title("left")]
    assert len(maps) == 8
    assert {tuple(np.asarray(line.get_xdata())) for line in maps[0].lines} == {
        (-0.5, 31.5),
        (31.5, 31.5),
    }
    assert len(maps[0].get_yticklabels()) < 40  # numbers, not tokens


@pytest.mark.slow
def test_figures_are_files_of_their_kind() -> None:
    save_model(layers=1, heads=2)
    files = [f"maps.{ending}" for ending in panels.FORMATS]
    assert main(["attention", "saved", "--text", "abc", "--heads", "0", "--out", *files]) == 0
    assert all(panels.is_stamped(Path(file), "") for file in files)


@pytest.mark.slow
def test_a_run_shows_an_item_of_its_task(
    drawn: list[Figure], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*FLIPFLOP, *SMALL]) == 0
    run = "tape/flipflop:samples=5/0"
    assert main(["attention", run]) == 2
    assert "has no model: repeat the command of the run with --keep" in capsys.readouterr().err
    assert main([*FLIPFLOP, *SMALL, "--keep"]) == 0
    assert main(["attention", run, "--out", "a.png", "b.svg"]) == 0
    assert Path("a.png").exists() and Path("b.svg").exists()
    assert "tape · flipflop:samples=5 · seed 0" in drawn[0].get_suptitle()
    assert main(["attention", run, "--text", "abc"]) == 2
    assert "has no tokenizer.json" in capsys.readouterr().err


def test_of_a_run_with_several_models_one_is_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = put(tmp_path / "results", "rope", [SCORE])
    for subset in ("a", "b"):
        pe_bench.save_checkpoint(make_model("rope"), folder / "model" / subset, "rope")
    for words, says in {
        "--subset b": "model/b has no tokenizer.json",
        "--subset c": "there are models of these subsets: a, b; write --subset NAME",
        "": "there are models of these subsets: a, b; write --subset NAME",
    }.items():
        assert main(["attention", "rope/lm/0", "--text", "abc", *words.split()]) == 2
        assert says in capsys.readouterr().err


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace models, items and figures; return the calls."""
    calls: list[Any] = []

    def draw(checkpoint: Any, row: Any, names: Any, layers: Any, heads: Any, options: Any) -> Any:
        calls.append((checkpoint.place, row, names, layers, heads, options.encoding))
        return [Path("one.png"), Path("two.svg")]

    def open_checkpoint(place: Path) -> Any:
        tokenizer = f"tokenizer of {place.name}"
        return SimpleNamespace(place=place, model=CONFIG, tokenizer=lambda: tokenizer)

    def rebuild(record: Any, scratch: Path, places: MovedPaths) -> Any:
        calls.append((record.encoding, places, scratch.is_dir()))
        vocabulary = SimpleNamespace(vocab_size=260)
        task = SimpleNamespace(
            name="lm", subsets=["near", "far away"], trains_each_subset=True, vocabulary=vocabulary
        )
        return SimpleNamespace(task=task), None

    monkeypatch.setattr("pe_bench.commands.attention._draw", draw)
    monkeypatch.setattr("pe_bench.pretrained.checkpoint.open_checkpoint", open_checkpoint)
    monkeypatch.setattr("pe_bench.runs.rebuild.rebuild", rebuild)
    monkeypatch.setattr("pe_bench.runs.shown_row.row_of_task", lambda task, *given: given)
    monkeypatch.setattr("pe_bench.runs.shown_row.row_of_text", lambda *given: given)
    return calls


@pytest.mark.parametrize(
    ("kept", "words", "place", "row"),
    [
        ("", "--length 7 --item 3", "model", (None, 7, 3)),
        ("", "--subset near", "model", ("near", None, 0)),
        ("near", "", "model/near", ("near", None, 0)),
        ("far_away", "--length 9", "model/far_away", ("far away", 9, 0)),
        ("near", "--text abc", "model/near", ("abc", "tokenizer of near")),
    ],
)
def test_the_item_of_a_run_is_that_of_its_model(
    drawing: list[Any],
    capsys: pytest.CaptureFixture[str],
    kept: str,
    words: str,
    place: str,
    row: tuple[Any, ...],
) -> None:
    run = put(Path("results"), "rope", [SCORE], 3)
    (run / "model" / kept).mkdir(parents=True)
    (run / "model" / kept / "config.json").touch()
    layers = ["--layers", "1", "0", "1", "--heads", "3", "--encoding", "e.py"]
    moved = [] if "text" in words else ["--task", "t.py", "--data", "d"]
    assert main(["attention", "rope/lm/3", *words.split(), *layers, *moved]) == 0
    assert capsys.readouterr().out == "one.png\ntwo.svg\n"
    *rebuilt, drawn = drawing
    names = ["rope", "lm", "seed 3"]
    assert drawn == (run / place, row, names, [0, 1], [3], "e.py")
    places = MovedPaths("e.py", "t.py", {"": Path("d")})
    assert rebuilt == ([] if "text" in words else [("rope", places, True)])


def test_an_item_is_that_of_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task: Any = resolve(RunOptions(cache=tmp_path), "copying:samples=3").task
    for subset in task.subsets:
        points = task.eval_points(subset)
        for point in {point.length: point for point in reversed(points)}.values():
            rows = task.items(subset, point)
            for item in (0, 2):
                row = row_of_task(task, subset, point.length, item)
                assert row.ids == rows.ids[item, : rows.lengths[item]].tolist()
                assert row.names == [str(token) for token in row.ids]
                about = f"{subset}, {point.length:,} {task.axes['length']}"
                second = f", {point.second_axis} {task.axes['second']}" if point.second_axis else ""
                assert row.about == f"{about}{second}, item {item}"
        with pytest.raises(InputError, match="--item must be below 3, the number of items, not 3"):
            row_of_task(task, subset, point.length, 3)
    lengths = {ID: [5, 3, 2], OOD: [9, 8]}
    points = [EvalPoint(length, "", split) for split, own in lengths.items() for length in own]
    for known, length in ((points, 8), (points[:3], 2)):
        monkeypatch.setattr(task, "eval_points", lambda subset, known=known: known)
        assert shown_row._find_point(task, "copy", None).length == length
    with pytest.raises(InputError, match="copying has no items of length 4; there are 2, 3, 5"):
        shown_row._find_point(task, "copy", 4)
    documents: Any = SimpleNamespace(name="documents")
    with pytest.raises(InputError, match="documents does not generate rows: give a text with"):
        row_of_task(documents)


def test_tokens_have_visible_names() -> None:
    tokenizer = ByteTokenizer()
    ids = [tokenizer.bos, tokenizer.pad, tokenizer.sep, tokenizer.eos, *b" a\n", 0xC3]
    names = ["<bos>", "<pad>", "<sep>", "<eos>", "\N{OPEN BOX}", "a", "\\n", "\ufffd"]
    assert name_tokens(ids, tokenizer) == names
    tokenizer.decode = lambda ids: ""  # type: ignore[method-assign]
    assert name_tokens([97], tokenizer) == ["97"]
    row = row_of_text("ab", ByteTokenizer())
    assert row == ShownRow([tokenizer.bos, 97, 98], ["<bos>", "a", "b"], "a text")


REFUSED = {
    "": "does not say which task its model was trained on: give --task, or --text",
    "--text": "the text is empty",
    "--text abc --item 1": "--item has no effect with --text",
    "--text abc --subset grid": "--subset has no effect with --text",
    "--text abc --out a.jpg": "a.jpg: a figure's name ends in .png, .svg or .pdf",
    "--text abc --heads 4": "--heads: the model has heads 0 to 3, and no head 4",
    "--text abc --layers 0 2": "--layers: the model has layers 0 to 1, and no layer 2",
    "--text abc --encoding tape": "tape is tape, but the model has rope",
    "--task passkey:vocabulary=tokenizer --length 3": "passkey has no items of length 3; there are",
    "--task passkey:vocabulary=tokenizer --item 999": "--item must be below 10, the number",
    "--task passkey:vocabulary=tokenizer --subset no": "there is no subset 'no'; there are ",
    "--task perplexity:corpus=stdlib": "perplexity does not generate rows: give a text",
}


@pytest.mark.parametrize(
    "words", some_slow(REFUSED, [each for each in REFUSED if "task" not in each])
)
def test_what_is_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(train_length=256)
    given = [*words.split(), ""] if words == "--text" else words.split()
    assert main(["attention", "saved", *given]) == 2
    assert REFUSED[words] in capsys.readouterr().err
    assert not list(Path().glob("*.png"))


def test_other_ids_and_too_many_maps_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pe_bench.save_checkpoint(make_model("rope"), "saved", "rope")
    assert main(["attention", "saved", "--task", "flipflop"]) == 2
    assert "flipflop has 7 token ids and the model has 260" in capsys.readouterr().err
    monkeypatch.setattr(attention_maps, "PANELS", 7)
    pe_bench.save_checkpoint(make_model("rope", vocab_size=130), "other", "rope")
    assert main(["attention", "other", "--task", "mqar:samples=1"]) == 2
    assert "2 layers of 4 heads are 8 maps, more than 7" in capsys.readouterr().err
    assert main(["attention", "absent/mqar/0"]) == 2
    assert "there is no run 'absent/mqar/0'" in capsys.readouterr().err
