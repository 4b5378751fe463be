"""The messages in docs/troubleshooting.md that are from bridge are its messages."""

import re

import pytest
from processes import ROOT

pytestmark = pytest.mark.nightly
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
ENTRIES = re.findall(r"^### (`+) ?(.*?) ?\1\n+\*From\* ([\w+.' ]+)", PAGE, re.MULTILINE)
MESSAGES = [message for _, message, source in ENTRIES if source.startswith("bridge")]
# Those in an entry of another message: "*From* bridge; also `...`".
MESSAGES += [also for _, also in re.findall(r"bridge(?:'s|; also)?\s(`+) ?(.*?) ?\1", PAGE)]


@pytest.fixture(scope="module")
def texts():
    """Every text of the package's sources, with "..." for what is filled in."""
    found, folder = [], ROOT / "bridge"
    for path in (*folder.rglob("*.py"), *folder.rglob("*.pyx")):
        for literals in re.findall(r'(?:f?"[^"\n]*"\s*)+', path.read_text()):
            text = "".join(re.findall(r'"([^"\n]*)"', literals))
            found.append(re.sub(r"\{.*?\}", "...", text))
    return found


def is_known(message, texts):
    """Tell whether one of the texts has a message, in which "..." stands for what differs."""
    pattern = re.escape(message).replace(re.escape("..."), ".*?")
    return any(re.search(pattern, text) for text in texts)


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_of_the_page_is_in_the_package(message, texts):
    assert is_known(message, texts)


def test_every_heading_is_read_and_another_message_is_noticed(texts):
    assert len(ENTRIES) == len(re.findall(r"^### `", PAGE, re.MULTILINE)) >= 40
    assert len(MESSAGES) == len({*MESSAGES}) > 15
    assert not is_known("PyCUDA has no context on that thread", texts)
