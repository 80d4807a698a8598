"""A folder's README is its table of contents, and links out of docs/ lead to the repository."""

import re
from pathlib import Path, PurePosixPath

from sphinx.application import Sphinx

REPOSITORY = "https://github.com/oodbench/oodbench/blob/main"
LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")
GENERATED = {"README": ["api/README"]}
"""Pages that no README names, since they are written when the site is built."""


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("source-read", read)
    app.connect("build-finished", copy_pages)
    return {"parallel_read_safe": True}


def read(app: Sphinx, name: str, source: list[str]) -> None:
    """Lead links out of docs/ to the repository, and add to a folder's README its table of contents."""
    docs = Path(app.srcdir)
    page = docs / f"{name}.md"
    if not page.is_file():
        return
    text = source[0]
    if page.name == "README.md":
        entries = contents(docs, page, text)
        entries[2:2] = GENERATED.get(name, [])
        if name == app.config.root_doc:
            text = f"{front(docs)}\n#{text}"
        text += "\n```{toctree}\n:hidden:\n:titlesonly:\n\n" + "\n".join(entries) + "\n```\n"
    source[0] = LINK.sub(lambda link: linked(docs, page, link), text)


def front(docs: Path) -> str:
    """The project's README, with its links as docs/ sees them."""
    text = (docs.parent / "README.md").read_text("utf-8")
    return LINK.sub(lambda link: f"](../{link[1]}{link[2] or ''})".replace("../docs/", ""), text)


def contents(docs: Path, readme: Path, text: str) -> list[str]:
    """The pages and notebooks that a README links to and that no README in a deeper folder has."""
    targets = [readme.parent / path for path, _ in LINK.findall(text)]
    pages = [t.resolve() for t in targets if t.suffix in (".md", ".ipynb") and t.is_file()]
    mine = [p for p in pages if p.is_relative_to(docs) and owner(docs, p) == readme]
    return [str(p.relative_to(readme.parent).with_suffix("")) for p in dict.fromkeys(mine)]


def owner(docs: Path, page: Path) -> Path | None:
    """The README in whose contents a page stands: the nearest one at or above its folder."""
    start = page.parent.parent if page.name == "README.md" else page.parent
    above = (folder / "README.md" for folder in (start, *start.parents))
    return next((r for r in above if r.is_file() and r.is_relative_to(docs)), None)


def linked(docs: Path, page: Path, link: re.Match[str]) -> str:
    """A link that the site can follow."""
    path, anchor = link[1], link[2] or ""
    target = (page.parent / path).resolve()
    if not target.exists():
        return link[0]  # Sphinx says that it is not there
    root = docs.parent.resolve()
    if not target.is_relative_to(docs):
        if target == root / "README.md":  # the site's start begins with it
            return f"]({up(page, docs)}README.md)"
        return f"]({REPOSITORY}/{PurePosixPath(target.relative_to(root))}{anchor})"
    if target.suffix == ".html":  # a page that `copy_pages` brings along
        return f"](page:{path})"
    return link[0]


def up(page: Path, docs: Path) -> str:
    """The way from a page to docs/."""
    return "../" * (len(page.relative_to(docs).parts) - 1)


def copy_pages(app: Sphinx, failed: Exception | None) -> None:
    """Copy pages that are HTML already, and lead from index.html to the start."""
    if failed is None and app.builder.format == "html":
        for page in Path(app.srcdir).glob("boards/*.html"):
            target = Path(app.outdir) / page.relative_to(app.srcdir)
            target.parent.mkdir(exist_ok=True)
            text = re.sub(r'href="(\.\./[^":]*)\.md', r'href="\1.html', page.read_text("utf-8"))
            target.write_text(text, "utf-8")
        start = '<meta http-equiv="refresh" content="0; url=README.html">\n'
        (Path(app.outdir) / "index.html").write_text(start)
