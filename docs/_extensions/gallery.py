"""What the gallery shows of an example: its figures, and its place in the order in which one learns."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from sphinx_gallery.scrapers import figure_rst, matplotlib_scraper

ORDER = (Path(__file__).parents[2] / "examples" / "ORDER.txt").read_text(encoding="utf-8").split()


def castfit_figures(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Show the figures that a block left in files and with pyplot, and close them."""
    paths: list[str] = []
    for picture in sorted(set(Path(block_vars["src_file"]).parent.glob("*.png"))):
        paths.append(next(block_vars["image_path_iterator"]))
        shutil.move(picture, paths[-1])
    return figure_rst(paths, gallery_conf["src_dir"]) + matplotlib_scraper(block, block_vars, gallery_conf)


def in_order(name: str) -> tuple[int, str]:
    """Sort examples as ORDER.txt does; new ones come last, by name."""
    stem = Path(name).stem
    return (ORDER.index(stem) if stem in ORDER else len(ORDER), stem)
