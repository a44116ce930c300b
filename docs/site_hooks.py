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
        drawn = convert(text.strip(), display="block" if is_block else "inline")
        return drawn.replace("<mo>&#x02015;</mo>", '<mo stretchy="true">&#x000AF;</mo>')  # a bar as wide as it must be

    return FORMULA.sub(drawn, content)


SHIM = "https://unpkg.com/iframe-worker/shim"


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Take the one script that the theme would fetch from the network from the site itself."""
    return output.replace(SHIM, "../" * page.url.count("/") + "assets/iframe-worker.js")


def on_post_template(output_content: str, **_: Any) -> str:
    """Likewise in pages that are no page, such as the one for a missing one."""
    return output_content.replace(SHIM, "/assets/iframe-worker.js")
