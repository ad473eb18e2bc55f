"""The shell reader: what bash would pass, without bash."""

from __future__ import annotations

import string
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logforensics.command import read_command
from logforensics.command.arithmetic import evaluate
from logforensics.command.conditions import truth
from logforensics.command.shell import read_shell
from logforensics.errors import CommandError


def words(text: str) -> tuple[str, ...]:
    """The words of the last command of a text."""
    return read_shell(text).invocations[-1].words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run a 'b c' \"d e\" f\\ g", ["run", "a", "b c", "d e", "f g"]),
        ("X=1; run $X ${X} \"$X\" '$X' \\$X", ["run", "1", "1", "1", "$X", "$X"]),
        ("X='a b'; run $X \"$X\"", ["run", "a", "b", "a b"]),
        ('run $UNDEFINED ${UNDEFINED} "${UNDEFINED}"', ["run", "$UNDEFINED", "$UNDEFINED", "$UNDEFINED"]),
        ("E=''; run $E \"$E\" x", ["run", "", "x"]),
        ("run ${X:-8} ${X-9} ${X:=7} ${X:+no}x", ["run", "8", "9", "7", "nox"]),
        ('X=; run ${X:-8} "${X-9}"', ["run", "8", ""]),
        ("A=(a 'b c' d); run \"${A[@]}\" ${#A[@]} ${A[1]} \"${A[*]}\"", ["run", "a", "b c", "d", "3", "b", "c", "a b c d"]),
        ('A=(a); A+=(b c); run "${A[@]}"', ["run", "a", "b", "c"]),
        ('A=(); run x "${A[@]}" y', ["run", "x", "y"]),
        ('A=(  # why\n  --tp 8 # ranks\n  --x\n); run "${A[@]}"', ["run", "--tp", "8", "--x"]),
        ("C=4; run $((C * 3 / 2 > 8 ? C * 3 / 2 : 8)) $(( (C+1)*2 ))", ["run", "8", "10"]),
        ("run $((UNDEFINED + 1))", ["run", "$((UNDEFINED + 1))"]),
        ("C=4; run $( [[ $C -gt 4 ]] && echo 30 || echo 10 )", ["run", "10"]),
        ("run $(hostname -I)", ["run", "$(hostname -I)"]),
        ("H=$(hostname); D=${H}:29500; run $D", ["run", "$H:29500"]),
        ("P=/a/b.tar.gz; run ${P##*/} ${P%%.*} ${P%.gz} ${P#/a/} ${P/b/c} ${P:1:3}", ["run", "b.tar.gz", "/a/b", "/a/b.tar", "b.tar.gz", "/a/c.tar.gz", "a/b"]),
        ("run a \\\n  b \\\n  c > log 2>&1 &", ["run", "a", "b", "c"]),
        ("run a>log", ["run", "a"]),
        ("run a &> log &", ["run", "a"]),
        ("run a 2>&1 | tee log; true", ["true"]),
        ('run "$@" x', ["run", "x"]),
        ('set -- p q; run "$@"', ["run", "p", "q"]),
        ("run $'a\\tb'", ["run", "a\tb"]),
        ("run a#b # c", ["run", "a#b"]),
        ('if [ -z "$TP" ]; then TP=8; fi; run $TP', ["run", "8"]),
        ("N=2; if [[ $N -eq 1 ]]; then A=one; elif [[ $N -eq 2 ]]; then A=two; else A=many; fi; run $A", ["run", "two"]),
        ("M=b; case $M in a) X=1;; b|c) X=2;; *) X=3;; esac; run $X", ["run", "2"]),
        ('M=z\ncase "$M" in\n  a)\n    X=1\n    ;;\n  *)\n    X=3\n    ;;\nesac\nrun $X', ["run", "3"]),
        ("for i in 0 1; do run $i; done", ["run", "0"]),
        ("f() { run $1; }; f", ["f"]),
        ('[[ -n "$X" ]] && A=yes || A=no; run $A', ["run", "no"]),
        ("(( 2 > 1 )) && A=yes; run $A", ["run", "yes"]),
        ("X=a; eval 'run $X'", ["run", "a"]),
        ("export X=1 Y=2; run $X$Y", ["run", "12"]),
        ("X+=a; X+=b; run $X", ["run", "ab"]),
        ("run <(echo a) b", ["run", "<(echo a)", "b"]),
    ],
)  # fmt: skip
def test_words_are_those_that_bash_would_pass(text: str, expected: list[str]) -> None:
    assert list(words(text)) == expected


def test_environment_is_what_was_exported_and_what_stands_in_front() -> None:
    invocation = read_shell("A=1\nexport B=2\nexport C\nC=3\nD=4 run x").invocations[-1]
    assert invocation.env == {"B": "2", "C": "3", "D": "4"}


def test_here_documents_are_files_with_their_variables() -> None:
    reading = read_shell("M=m\ncat > /etc/a.env <<EOF\nMODEL=$M\nEOF\ncat <<'EOF' > b\n$M stays\nEOF\n")
    assert reading.files == {"/etc/a.env": "MODEL=m\n", "b": "$M stays\n"}


def test_a_branch_that_the_text_does_not_decide_can_be_taken_either_way() -> None:
    text = "if nvidia-smi; then run gpu; else run cpu; fi"
    assert ("run", "gpu") in [item.words for item in read_shell(text).invocations]
    assert ("run", "cpu") in [item.words for item in read_shell(text, take_unknown=False).invocations]


@pytest.mark.parametrize(
    ("expression", "value"),
    [("1 + 2 * 3", 7), ("(1+2)*3", 9), ("7 / 2", 3), ("-7 / 2", -3), ("7 % 3", 1), ("2 ** 10", 1024), ("1 << 4 | 1", 17), ("3 > 2 && 0", 0),
     ("0 || 5", 1), ("!0", 1), ("~0", -1), ("1 ? 2 : 3", 2), ("0x10", 16), ("X * 2", 10), ("", 0), ("1 / 0", None), ("Y", None), ("1 +", None),
     ("2 ** 999", 0), ("a b", None), ("(" * 500, None), ("1" + "+1" * 1000, None)],
)  # fmt: skip
def test_arithmetic(expression: str, value: int | None) -> None:
    assert evaluate(expression, {"X": "5"}.get) == value


def test_arithmetic_of_variables_that_name_each_other_comes_to_an_end() -> None:
    assert evaluate("A", {"A": "B", "B": "A"}.get) is None


@pytest.mark.parametrize(
    ("test", "value"),
    [("1 -lt 2", True), ("a = a", True), ("a != a", False), ("v4 == v*", True), ("-n x", True), ("-z $UNDEFINED", True), ("-f /etc/passwd", None),
     ("! a = b", True), ("a = a && b = c", False), ("a = b || b = b", True), ("x -lt 2", None), ("$(pwd) = /", None)],
)  # fmt: skip
def test_conditions(test: str, value: object) -> None:
    assert truth(test.split()) is value


PIECES = [
    *"ab$(){}[]<>|&;'\"\\`#=+-*/%!@^~ \n\t018",
    "${",
    "$((",
    "$(",
    "A=(",
    "<<E\n",
    "if ",
    "then ",
    "fi ",
    "[[ ",
    "]] ",
    "case ",
    " in ",
]
SHELLISH = st.lists(st.sampled_from([*PIECES, "esac ", "$A", "A=", "A+=", "eval ", ";; ", "elif ", "else "]), max_size=60).map("".join)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SHELLISH)
def test_no_text_breaks_the_reader(text: str) -> None:
    reading = read_shell(text)
    assert all(isinstance(word, str) for item in reading.invocations for word in item.words)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.text(alphabet=string.printable, min_size=1, max_size=12), max_size=5))
def test_quoted_words_come_back_as_they_are(given_words: list[str]) -> None:
    import shlex

    clean = [word for word in given_words if "\r" not in word]
    assert list(words("run " + shlex.join(clean))) == ["run", *clean]


def test_nothing_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("something was executed")

    for name in ("run", "Popen", "call", "check_output"):
        monkeypatch.setattr(subprocess, name, forbidden)
    monkeypatch.setattr("os.system", forbidden)
    marker = tmp_path / "marker"
    text = f"X=$(touch {marker}); `touch {marker}`; eval touch {marker}; python -m sglang.launch_server --model-path $(touch {marker}) --tp `touch {marker}`"
    read_command(text)
    read_command(
        f"import os\nos.system('touch {marker}')\nopen('{marker}', 'w')\nsgl.Engine(model_path=__import__('os').system('touch {marker}'))"
    )
    assert not marker.exists()


@pytest.mark.parametrize("bomb", ['A="$A$A$A$A"\n', "A=(${A[@]} ${A[@]} x)\n", "eval ", "$(", "${A:-", 'bash -c "', "[[ a || ", "! ", "if x; then ", "`", "<<E\n"])  # fmt: skip
def test_bombs_end_early(bomb: str) -> None:
    start = time.process_time()
    try:
        command = read_command("A=aaaaaaaa\n" + bomb * 20_000 + "\npython -m sglang.launch_server --model-path m --tp 8")
        assert command.flags.get("--tp-size", 8) == 8
    except CommandError:
        pass
    assert time.process_time() - start < 8
