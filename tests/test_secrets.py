"""Secrets are masked in every form they are pasted in, and nothing else is."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logforensics.secrets import _masked, is_secret, mask


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("ServerArgs(api_key='abc', admin_api_key=None, tp_size=8)", "ServerArgs(api_key='***', admin_api_key=None, tp_size=8)"),
        (r"{'api_key': 'it\'s', 'port': 1}", "{'api_key': '***', 'port': 1}"),
        ('{"api_key": "abc"}', '{"api_key": "***"}'),
        (r"{\"api_key\": \"abc\"}", r"{\"api_key\": \"***\"}"),
        ("api_key='cut off he", "api_key='***"),
        ("--api-key abc --tp 8", "--api-key *** --tp 8"),
        ("--api-key=abc --tp 8", "--api-key=*** --tp 8"),
        ("--api-key \\\n  abc", "--api-key \\\n  ***"),
        ("--admin-api-key 'a b c' --tp 8", "--admin-api-key '***' --tp 8"),
        ("['--api-key', 'abc', '--tp']", "['--api-key', '***', '--tp']"),
        ("ssl_keyfile_password='pw'", "ssl_keyfile_password='***'"),
        ("HF_TOKEN=abc python -m x", "HF_TOKEN=*** python -m x"),
        ('export OPENAI_API_KEY="abc def"', 'export OPENAI_API_KEY="***"'),
        ("docker run -e HF_TOKEN=abc image", "docker run -e HF_TOKEN=*** image"),
        ("AWS_SECRET_ACCESS_KEY: abc", "AWS_SECRET_ACCESS_KEY: ***"),
        ("Authorization: Bearer abcdef12345", "Authorization: Bearer ***"),
        ("https://user:pw@host/x", "https://user:***@host/x"),
        ("loading with hf_AbCdEfGh1234567890", "loading with ***"),
        ("loading with sk-proj-abc123def456ghi", "loading with ***"),
    ],
)
def test_secrets_are_masked(text: str, masked: str) -> None:
    assert mask(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "Prefill batch, #new-seq: 1, #new-token: 512, #cached-token: 0, token usage: 0.10",
        "max_total_num_tokens=123, speculative_token_map=None, tokenizer_path='/m', hf_chat_template_name=None",
        "sglang/srt/utils/hf_transformers_utils.py and hf_transformers/config.py",
        "api_key=None, 'admin_api_key': None",
        "--api-key $API_KEY --tp 8",
        "--api-key --tp 8",
        "docker run -e HF_TOKEN image",
        "http://127.0.0.1:30000/generate",
        "eos_token='</s>', bos_token_id=1, next_token=5",
        "task-skip-list risk-1234567890123",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert mask(text) == text


@given(st.text(max_size=200), st.sampled_from(["api_key='{}'", "--api-key {}", "HF_TOKEN={}", "Bearer {}", "https://u:{}@h"]))
def test_masking_twice_changes_nothing_more(secret: str, form: str) -> None:
    once = mask(form.format(secret))
    assert mask(once) == once


@given(
    st.from_regex(r"[A-Za-z0-9_.-]{3,40}", fullmatch=True).filter(
        lambda s: s.lower() not in {"none", "true", "false", "null", "nil", "str", "optional"}
    )
)
def test_no_value_of_a_key_survives(secret: str) -> None:
    hidden = "§" + secret  # cannot be a piece of the text around it
    assert hidden not in mask(f"a, api_key='{hidden}', b")
    assert hidden not in mask(f"run --api-key={hidden} -x")


def test_names_of_flags_variables_and_fields() -> None:
    secret = ["--api-key", "--admin-api-key", "api_key", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "--ssl-keyfile-password", "watermark_key"]
    plain = ["--max-total-tokens", "tokenizer_path", "--ssl-keyfile", "num_reserved_decode_tokens", "speculative_token_map"]
    assert [n for n in [*secret, *plain] if is_secret(n)] == secret


@pytest.mark.parametrize(
    "text", ["a-" * 100_000, "--" + "a_" * 50_000, "api_key='" + "x" * 200_000, "bearer " * 50_000, "eyJ" * 50_000, "://a" * 50_000]
)
def test_hostile_text_takes_no_time(text: str) -> None:
    start = time.process_time()
    mask(text)
    assert time.process_time() - start < 2


_PIECES = (
    "api", "key", "\u212aEY", "access", "private", "encryption", "watermark", "hf", "hub", "hugging", "face", "auth", "secret", "\u017fecret",
    "pass", "word", "wd", "phrase", "credential", "s", "token", "bearer ", "://", "u:p@h", "sk-1", "ghp_", "github_pat_", "glpat-", "xoxb-",
    "nvapi-", "AKIA", "eyJ", ".", "A1b2C3d4E5f6G7h8", "=", ": ", "'", '"', "--", "-", "_", " ", ",", "\\",
)  # fmt: skip


@given(st.lists(st.sampled_from(_PIECES), max_size=12), st.sampled_from([str, str.upper, str.title]))
def test_no_text_is_passed_over_that_would_be_masked(pieces: list[str], case: Callable[[str], str]) -> None:
    text = case("".join(pieces))
    assert mask(text) == _masked(text)
