"""What is said about a script when it comes in."""

import re

import pytest

from orchestrator.exceptions import Malformed
from orchestrator.store.bundles.names import shadowing_warnings
from orchestrator.store.bundles.scripts import check_script


def test_a_good_script_has_no_warnings():
    assert check_script("train.py", b"import torch\nprint(torch.__version__)\n") == []


@pytest.mark.parametrize("data", [b"\x7fELF\x02", b"%PDF-1.7\n", b"PK\x03\x04abc", b"\x1f\x8b\x08\x00"])
@pytest.mark.code("B19")
def test_binary_files_are_refused_as_scripts(data):
    with pytest.raises(Malformed, match="not a script"):
        check_script("train.py", data)


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        ("x = 1".encode("utf-16"), "byte 0"),
        (b"# caf\xe9\n", "offset 5"),
        (b"x = '\xed\xa0\x80'", "offset 5"),
        (b"# -*- coding: latin-1 -*-\n# \xe4", "offset 28"),
    ],
)
@pytest.mark.code("B20")
def test_other_encodings_are_refused_with_their_offset(data, offset):
    with pytest.raises(Malformed, match=offset):
        check_script("train.py", data)


@pytest.mark.code("B20")
def test_a_byte_order_mark_of_utf8_is_accepted():
    assert check_script("train.py", b"\xef\xbb\xbfprint(1)\n") == []


@pytest.mark.code("B21")
def test_nul_bytes_are_refused_with_their_offset():
    with pytest.raises(Malformed, match="offset 6"):
        check_script("train.py", b"x = 1\n\0")


@pytest.mark.code("B22")
def test_a_syntax_error_is_a_warning_with_its_line():
    (warning,) = check_script("train.py", b"x = 1\nif x\n")

    assert "line 2" in warning


@pytest.mark.parametrize(
    "data",
    [
        b"(" * 100_000,
        b"-" * 100_000 + b"1",
        b"not " * 50_000 + b"1",
        b"x = (\n" + b"-\n" * 30_000 + b"1)\n",
        b"x = " + b"a." * 30_000 + b"b\n",
        b"x = " + b"1+" * 30_000 + b"1\n",
        b"x = " + b"lambda: " * 8_000 + b"1\n",
        b"x" + b"[0]" * 20_000 + b"\n",
        b"x = " + b"(" * 150 + b")" * 150,
        b"".join(b" " * n + b"if 1:\n" for n in range(150)),
        b"x = '" + b"{" * 60_000 + b"'\n",
        b"f(" * 90 + b")" * 90,
        b"x = " + b"1 if 1 else " * 20_000 + b"1\n",
    ],
)
@pytest.mark.code("B22")
def test_deep_nesting_never_ends_the_process(data):
    warnings = check_script("train.py", data)

    assert all("train.py" in warning for warning in warnings)


@pytest.mark.code("B22")
def test_invalid_escapes_print_nothing_here(recwarn):
    assert check_script("train.py", b"x = '\\d'\n") == []
    assert not recwarn.list


@pytest.mark.code("B23")
def test_names_that_hide_modules_are_warned_about():
    assert "'torch' hides" in check_script("torch.py", b"x = 1\n")[0]
    assert shadowing_warnings(["random.py", "numpy/__init__.py", "train.py", "pkg/json.py"]) == [
        f"'{name}' hides the module of the same name from every import; rename it if that is not intended."
        for name in ("numpy", "random")
    ]


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("run.sh", b"set -e\npython train.py\n", "berth run -- bash 'run.sh'"),
        ("run", b"#!/usr/bin/env bash\npython train.py\n", "is a shell script"),
        ("nb.ipynb", b'{"cells": []}', "jupyter nbconvert --to script 'nb.ipynb'"),
        ("Makefile", b"all:\n\tpython train.py\n", "start it as a command: berth run -- make"),
        ("fit.jl", b"for i in 1:3 println(i) end\n", "berth run -- julia 'fit.jl'"),
        ("fit.R", b"x <- function(a) { a }\n", "berth run -- Rscript 'fit.R'"),
        ("fit", b'#!/usr/bin/env perl -w\nprint "x";\n', "berth run -- perl 'fit'"),
        ("fit", b"#!/usr/local/bin/lua5.4\nlocal x = 1\n", "berth run -- lua5.4 'fit'"),
        (
            "fit",
            b"#!/usr/bin/env -S julia --threads 4\nfor i in 1:3 println(i) end\n",
            "berth run -- julia 'fit'",
        ),
        ("fit", b"#!/usr/bin/env -i A=1 node\nlet x = 1\n", "berth run -- node 'fit'"),
        ("fit.py", b'#!/usr/bin/perl\nprint "x";\n', "berth run -- perl 'fit.py'"),
        ("fit", b"#!/usr/bin/fish\nset x 1\n", "berth run -- fish 'fit'"),
        ("main.cpp", b"int main() { return 0; }\n", "'main.cpp' has to be compiled"),
        ("config.json", b'{"lr": 0.1}', "'config.json' is not a script; name the one that starts"),
    ],
)
def test_what_is_no_python_is_refused_with_what_to_do(name, data, sentence):
    with pytest.raises(Malformed, match=re.escape(sentence)):
        check_script(name, data)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("fit", "#!/usr/bin/env -S uv run --script"),
        ("fit", "#!/usr/bin/env -S python3 -u"),
        ("fit", "#!/usr/bin/env pypy3"),
        ("fit", "#!/opt/bin/micromamba run -n x python"),
        ("fit.py", "#!/opt/bin/tool"),
    ],
)
def test_newer_python_of_any_interpreter_is_a_warning(name, line):
    (warning,) = check_script(name, f"{line}\nmatch x:\n    case 1 = 2: pass\n".encode())

    assert "does not look like Python that runs: line 3" in warning


def test_problems_of_python_end_with_one_sign_and_stay_warnings():
    (warning,) = check_script("old.py", b"#!/usr/bin/env python2\nprint 'x'\n")

    assert warning.endswith("Did you mean print(...)?.") is False
    assert "Missing parentheses" in warning


def test_a_notebook_that_became_a_script_is_warned_about():
    converted = b"# In[1]:\nget_ipython().system('pip install -q click')\nprint(1)\n"

    assert "berth run --with ipython -- ipython fit.py" in check_script("fit.py", converted)[0]
    assert "-- ipython 'my fit.py'" in check_script("my fit.py", converted)[0]
    assert (
        check_script("fit.py", b"try:\n    get_ipython().run_line_magic('a', '')\nexcept NameError: pass\n")
        == []
    )


def test_python_of_any_name_is_taken():
    assert check_script("train.sh", b"print(1)\n") == []
    assert check_script("train", b"#!/usr/bin/env python3\nprint(1)\n") == []
