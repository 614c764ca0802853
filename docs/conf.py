"""`make docs`: the Markdown of this repository as a site. The pages can also be read as files, without the site.

The site's first page is the README. A page that is missing in ``NAVIGATION`` causes a warning, which is an error.
A link to a file that is not a page (a DAG, a line of the source) leads to a copy of the file with numbered lines.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.application import Sphinx

from airflow_nats_jetstream import __version__

ROOT = Path(__file__).parents[1]
SITE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"][
    "Documentation"
]
"""Where this site is published. Pages link to the reference there, because the code host does not have it."""

PYTHON = sorted(
    str(path.relative_to(ROOT).with_suffix(""))
    for path in ROOT.glob("docs/reference/python/*.md")
)

NAVIGATION = {
    "First steps": [
        "docs/quickstart",
        "docs/dagster-quickstart",
        "docs/concepts",
        "docs/coming-from-nats",
        "docs/coming-from-kafka",
        "docs/coming-from-nats-spark-connector",
        "docs/comparison",
        "docs/adopting",
    ],
    "How to": [
        "docs/how-to/event-driven",
        "docs/how-to/dagster",
        "docs/how-to/read-results",
        "docs/several-tasks",
        "docs/how-to/warm-spark",
        "docs/how-to/spark-cluster",
        "docs/how-to/managed-services",
        "docs/how-to/hold-any-operator",
        "docs/how-to/parallel-runs",
        "docs/how-to/order-per-key",
        "docs/how-to/catch-up-and-backfill",
        "docs/how-to/large-payloads",
        "docs/how-to/key-value",
        "docs/how-to/stream-to-table",
        "docs/how-to/polars-and-duckdb",
        "docs/how-to/streaming-query",
        "docs/how-to/object-stores",
        "docs/how-to/maintain-tables",
        "docs/how-to/malformed-messages",
        "docs/how-to/schema-registry",
        "docs/how-to/payload-formats",
        "docs/how-to/messages-that-vanish",
        "docs/how-to/interest-retention",
        "docs/how-to/test-a-dag",
    ],
    "What is promised": [
        "docs/handoff",
        "docs/reliability",
        "docs/publishing",
        "docs/airflow-events",
        "docs/upgrading",
    ],
    "Operating": [
        "docs/reference/connection",
        "docs/performance",
        "docs/large-job",
        "docs/monitoring",
        "docs/page",
        "docs/at-3-am",
        "docs/reference/permissions",
    ],
    "Reference": [
        "docs/reference/operators",
        "docs/reference/dagster",
        "docs/reference/spark",
        "docs/reference/avro-values",
        "docs/reference/protobuf-values",
        "docs/reference/json-values",
        "docs/reference/jetstream",
        *PYTHON,
    ],
    "The project": [
        "docs/architecture",
        "docs/decisions",
        "CONTRIBUTING",
        "docs/first-change",
        "SECURITY",
        "CHANGELOG",
    ],
}

project = "airflow-provider-nats-jetstream"
project_copyright = "the authors, Apache-2.0"
version = release = __version__

extensions = ["myst_parser", "sphinxcontrib.mermaid"]
myst_fence_as_directive = ["mermaid"]
mermaid_height = "auto"
mermaid_fullscreen = False  # its button covers a corner of the diagram
include_patterns = ["*.md", "docs/**.md"]
root_doc = "README"
html_theme = "furo"
html_title = project
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
myst_heading_anchors = 4
myst_url_schemes = {"http": None, "https": None, "source": None}


RECORDS = "docs/decisions"
"""The page that lists the numbered decision records, which are in the folder of the same name."""


def toctrees() -> str:
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n"
        + "\n".join(f"/{page}" for page in pages)
        + "\n```\n"
        for caption, pages in NAVIGATION.items()
    )


def read(app: Sphinx, page: str, source: list[str]) -> None:
    """Give links to files that are not pages the scheme ``source:``, and append the navigation to the README.

    Links to the published site lead to the pages of this one.
    """
    folder = ROOT / page

    def scheme(link: re.Match[str]) -> str:
        path = Path(os.path.normpath(folder.parent / link[1]))
        if not path.is_file() or path.suffix in (".md", ".png", ".svg"):
            return link[0]
        return f"](source:{path.relative_to(ROOT)}{link[2] or ''})"

    source[0] = re.sub(r"\]\((?![a-z]+:)([^)#\s]+)(#[^)\s]*)?\)", scheme, source[0])
    source[0] = re.sub(
        rf"^(\[\w+\]: ){re.escape(SITE)}([\w/-]+)\.html",
        r"\1/\2.md",
        source[0],
        flags=re.MULTILINE,
    )
    if page == root_doc:
        source[0] += toctrees()
    if page == RECORDS:
        source[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n\n/{RECORDS}/*\n```\n"


def resolve(app: Sphinx, doctree: nodes.document, page: str) -> None:
    for reference in doctree.findall(nodes.reference):
        scheme, _, target = str(reference.get("refuri", "")).partition(":")
        if scheme == "source":
            path, _, line = target.partition("#L")
            uri = app.builder.get_relative_uri(page, f"source/{path}")
            reference["refuri"] = uri + (f"#L-{line}" if line else "")
            app.env.metadata[page].setdefault("sources", set()).add(path)


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page with numbered lines for each linked file, and ``index``, which redirects to the README."""
    moved = '<meta http-equiv="refresh" content="0; url=README.html">'
    yield "index", {"title": project, "body": "", "metatags": moved}, "page.html"
    formatter = HtmlFormatter(linenos="inline", lineanchors="L")
    for path in sorted(
        {
            path
            for known in app.env.metadata.values()
            for path in known.get("sources", ())
        }
    ):
        try:
            lexer = get_lexer_for_filename(path)
        except ClassNotFound:
            lexer = TextLexer()
        body = highlight((ROOT / path).read_text(), lexer, formatter)
        yield (
            f"source/{path}",
            {"title": path, "body": f"<h1>{path}</h1>{body}"},
            "page.html",
        )


def setup(app: Sphinx) -> None:
    app.connect("source-read", read)
    app.connect("doctree-resolved", resolve)
    app.connect("html-collect-pages", pages)
