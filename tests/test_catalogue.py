"""The pages of the catalogue agree with the encodings and the results."""

import re
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image
from scripts import load_script

ROOT = Path(__file__).parents[1]
NAMES = ("alibi", "rope")


@pytest.fixture(scope="module")
def catalogue() -> ModuleType:
    """Return the script that writes the catalogue."""
    return load_script("docs/catalogue.py")


@pytest.fixture(scope="module")
def folder(catalogue: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the catalogue of two encodings, with the scores of one committed folder."""
    folder = tmp_path_factory.mktemp("catalogue")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogue, "SCORES", ("scrolls",))
        families = catalogue.write(folder, NAMES)
    assert families == {"Rotary": ["rope"], "Bias by distance": ["alibi"]}
    return folder


@pytest.mark.slow
def test_a_page_has_what_the_encoding_says_and_what_was_measured(folder: Path) -> None:
    page = (folder / "alibi.md").read_text(encoding="utf-8")
    assert "# alibi" in page
    assert "[arXiv 2108.12409](https://arxiv.org/abs/2108.12409)" in page
    assert "logit_ij -= slope_h (i - j)" in page
    assert re.search(r"- \*\*`slope_scale=1`\*\* \(a number\): factor of all slopes", page)
    assert "| shift-invariant | yes |" in page
    assert re.search(r"\| training step, 1024 tokens \| 1\.\d\d \| 1\.\d\d \|", page)
    scrolls = r"\| scrolls \| score, % ↑ \| 69\.2 \| 14\.6 \| 89\.3 \| 2 of 8 \| 5 of 5 \|"
    assert re.search(scrolls, page)


@pytest.mark.slow
def test_options_of_parents_and_of_choices_are_described(folder: Path) -> None:
    page = (folder / "rope.md").read_text(encoding="utf-8")
    assert re.search(r"`train_positions=contiguous`.*position ids in training", page)
    assert re.search(r"^    - `yarn`: .*Peng et al. 2023", page, re.MULTILINE)
    assert re.search(r"`beta_fast=None`.*: planes with at least", page)


@pytest.mark.slow
def test_the_index_shows_every_encoding_with_its_figure(folder: Path) -> None:
    index = (folder / "index.md").read_text(encoding="utf-8")
    assert index.startswith((ROOT / "docs/catalogue/index.md").read_text(encoding="utf-8").strip())
    for name in NAMES:
        assert f"[![]({name}.png){{ loading=lazy }} {name}]({name}.md)" in index
        with Image.open(folder / f"{name}.png") as figure:
            assert len(figure.convert("RGB").getcolors(1 << 20) or []) > 10


@pytest.mark.slow
def test_logits_follow_the_formula(catalogue: ModuleType) -> None:
    """ALiBi's heads lose 1/2, 1/4, ... nats per token."""
    plugin = catalogue.plugins.load("encoding", "alibi")
    logits = catalogue.measure_logits(plugin)
    assert logits.shape == (catalogue.MODEL.heads, catalogue.LENGTH)
    slopes = (logits[:, 0] - logits[:, 100]) / 100
    assert slopes.tolist() == pytest.approx([2.0**-n for n in range(1, 9)], abs=1e-5)


def test_text_of_docstrings_is_not_taken_for_markup(catalogue: ModuleType) -> None:
    text = "a * b_i < c with `x * y_i`, arXiv 2108.12409\n    code * as_is"
    link = "[arXiv 2108.12409](https://arxiv.org/abs/2108.12409)"
    assert catalogue.prose(text) == (
        rf"a \* b\_i &lt; c with `x * y_i`, {link}" + "\n    code * as_is"
    )
