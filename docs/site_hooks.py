"""What the docs site needs besides Markdown: formulas without JavaScript, and links that leave the docs.

`make docs` calls it through mkdocs.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Show links into the repository as the paths they are: the site has the docs alone."""
    return re.sub(r"\[`?([^\]`]+)`?\]\((?:\.\./)+[^)]+\)", r"`\1`", markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Turn formulas into MathML, which browsers draw themselves."""

    def drawn(match: re.Match[str]) -> str:
        is_block = match[1] == "div"
        text = html.unescape(match[2]).strip()
        text = text.removeprefix("\\[" if is_block else "\\(").removesuffix("\\]" if is_block else "\\)")
        return convert(text.strip(), display="block" if is_block else "inline")

    return FORMULA.sub(drawn, content)
