"""Links of the pages that users and contributors read."""

from __future__ import annotations

import pytest
from conftest import ROOT

pytestmark = pytest.mark.nightly


@pytest.fixture
def links(package, monkeypatch):
    package("mdit_py_plugins")
    monkeypatch.syspath_prepend(ROOT / "tools")
    import links

    return links


def test_links_and_anchors_exist(links):
    pages = links.pages()
    assert {ROOT / "README.md", ROOT / "docs" / "trust.md"} <= {*pages}
    assert sum(len(links.read(page).links) for page in pages) > 20
    assert list(links.broken(pages)) == []


def test_links_that_lead_nowhere_are_found(links, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A `name`, twice\n# A `name`, twice\n"
        "[file](page.md) [anchor](#a-name-twice-1) `[code](nowhere)` [far](https://a.b/nowhere)\n\n"
        "| ![image](nowhere.svg) | [anchor](page.md#a-name-twice-2) |\n|---|---|\n| [file][1] | |\n"
        "\n[1]: ../page.md\n"
    )
    (tmp_path.parent / "page.md").touch()  # outside of the checkout
    assert list(links.broken([page], tmp_path)) == [
        "page.md: nowhere.svg: no such file",
        "page.md: page.md#a-name-twice-2: no such anchor",
        "page.md: ../page.md: no such file",
    ]
