"""A hook of mkdocs (`make docs`): the repository's own pages in the site, and links that hold on both sides.

README.md, CONTRIBUTING.md and CHANGELOG.md lie beside `docs/`, and pages link to them as files of the repository. The
site has them as pages; LICENSE and CITATION.cff as files.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

FROM_ROOT = {
    "README.md": "overview.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "LICENSE.txt",
    "CITATION.cff": "CITATION.cff",
}
_LINK = re.compile(r"(\]\(|\b(?:src|srcset|href)=\")(?![a-z]+:|#|/)([^)\s#\"]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and files of the repository's root."""
    root = Path(config.config_file_path).parent
    for name, uri in FROM_ROOT.items():
        files.append(File.generated(config, uri, abs_src_path=str(root / name)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn each link between files of the repository into one between pages of the site."""
    uri = page.file.src_uri
    own = next((name for name, site in FROM_ROOT.items() if site == uri), f"docs/{uri}")

    def rewritten(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(own), match[2]))
        place = FROM_ROOT.get(target, target.removeprefix("docs/"))
        return match[1] + posixpath.relpath(place, posixpath.dirname(uri) or ".")

    return _LINK.sub(rewritten, markdown)
