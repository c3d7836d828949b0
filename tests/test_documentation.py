"""The code blocks of the manual run, in order, as one program for each page."""

import pathlib
import re

import jax
import pytest

DOCS = pathlib.Path(__file__).parent.parent / "docs"


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page, printed", [("extending.md", "conforms"), ("audit.md", "captured constant")])
def test_the_code_of_a_page_runs_as_it_stands(page, printed, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = blocks(page)
    assert code
    scope = {"__name__": f"docs.{page}"}
    # as users run it: without the strict promotion of these tests
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for number, block in enumerate(code):
            exec(compile(block, f"{page}, block {number}", "exec"), scope)
    assert printed in capsys.readouterr().out
