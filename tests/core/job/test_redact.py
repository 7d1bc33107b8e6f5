"""Secrets are told from names and shapes, and nothing that only resembles one is lost."""

from __future__ import annotations

import pytest

from holdfast.core.job.redact import (
    REDACTED,
    is_secret_name,
    is_secret_value,
    redact_argv,
    redact_code,
    redact_env,
    redact_text,
)
from tests.each import each

pytestmark = pytest.mark.pure

# Put together at run time, so that no scanner takes this file for a leak.
GITHUB = "ghp_" + "a1B2" * 9
HUGGING = "hf_" + "abCD" * 9
OPENAI = "sk-" + "proj-" + "x9" * 20
AMAZON = "AKIA" + "ABCDEFGH12345678"
TOKEN = "eyJ" + "hbGciOiJI" + ".eyJ" + "zdWIiOiIx" + "." + "SflKxwRJSM"
KEY_BLOCK = "-----BEGIN OPENSSH PRIVATE" + " KEY-----\nabc\n-----END OPENSSH PRIVATE" + " KEY-----"


@each(
    "name",
    [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "--api-key",
        "db.password",
        "githubToken",
        "AWS_SECRET_ACCESS_KEY",
        "PGPASSWORD_SECRET",
        "MYSQL_PWD",
        "hub_token",
        "client_secret",
        "SSH_PRIVATE_KEY",
        "Authorization",
        "OPENAI_KEY",
        "apiKey",
        "--hub-token",
    ],
)
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)


@each(
    "name",
    [
        "PWD",
        "OLDPWD",
        "TOKENIZERS_PARALLELISM",
        "--max-tokens",
        "max_token",
        "pad_token_id",
        "sort_key",
        "--key-dim",
        "KEYBOARD",
        "SSH_AUTH_SOCK",
        "PATH",
        "--num-heads",
        "HF_TOKEN_PATH",
        "tokenizer",
        "monkey",
        "password_file",
        "",
        "n_token",
    ],
)
def test_innocent_names(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize("value", [GITHUB, HUGGING, OPENAI, AMAZON, TOKEN, KEY_BLOCK, "postgres://me:pw123@db/x"])
def test_secret_values_by_shape(value: str) -> None:
    assert is_secret_value(value)
    assert value not in redact_text(f"before {value} after")
    assert redact_text(f"before {value} after").startswith("before ")


@pytest.mark.parametrize(
    "value",
    ["", "resnet50", "a" * 40, "0123456789abcdef" * 2, "https://host:8080/x", "git@host:repo", "postgres://u:$PW@db"],
)
def test_innocent_values(value: str) -> None:
    assert not is_secret_value(value)
    assert redact_text(value) == value


def test_a_hex_key_counts_only_where_its_name_hints() -> None:
    key = "0123456789abcdef0123456789abcdef01234567"
    assert is_secret_value(key, "WANDB_API_KEY")
    assert is_secret_value(key, "kaggle_key")
    assert not is_secret_value(key, "GIT_COMMIT")


@pytest.mark.requirement("OBS-04")
def test_OBS_04_the_environment_is_recorded_by_allow_list() -> None:
    environ = {"PATH": "/bin", "HF_TOKEN": "xyz", "WANDB_API_KEY": "abc", "MY_THING": "1", "OMP_NUM_THREADS": "4"}
    environ |= {"HOLDFAST_RUN_ID": "r", "TORCH_TOKEN": "abc", "CUDA_CACHE_PATH": "https://u:" + "pw@h/", "LC_ALL": "C"}
    kept = redact_env(environ, ("MY_THING",))
    assert kept["PATH"] == "/bin"
    assert kept["MY_THING"] == "1"
    assert kept["TORCH_TOKEN"] == kept["CUDA_CACHE_PATH"] == REDACTED
    assert "HF_TOKEN" not in kept
    assert "WANDB_API_KEY" not in kept
    assert list(kept) == sorted(kept)


HEX = "0123456789abcdef" * 2 + "01234567"


@pytest.mark.requirement("OBS-04")
@each(
    ("text", "expected"),
    [
        (f"wandb login {HEX}", f"wandb login {REDACTED}"),
        (f"WANDB_API_KEY {HEX} was not taken", f"WANDB_API_KEY {REDACTED} was not taken"),
        ("os.environ['MY_SECRET'] = 'hunter2hunter2'", f"os.environ['MY_SECRET'] = '{REDACTED}'"),
        ("publish as tk_" + "abcdefgh01" * 3, f"publish as {REDACTED}"),
        (f"commit {HEX} is pushed", f"commit {HEX} is pushed"),
        ("HF_TOKEN is not set", "HF_TOKEN is not set"),
        ("x['max_tokens'] = 'abc'", "x['max_tokens'] = 'abc'"),
    ],
)
def test_OBS_04_words_of_a_log(text: str, expected: str) -> None:
    assert redact_text(text) == expected


@pytest.mark.requirement("OBS-04")
@each(
    ("argv", "expected", "hits"),
    [
        (["python", "t.py", "--api-key", "verysecret"], ["python", "t.py", "--api-key", REDACTED], 1),
        (["t", "--api-key=verysecret", "--lr=0.1"], ["t", f"--api-key={REDACTED}", "--lr=0.1"], 1),
        (["env", "WANDB_API_KEY=abcdef", "t"], ["env", f"WANDB_API_KEY={REDACTED}", "t"], 1),
        (["bash", "-c", "export HF_TOKEN=xyz1; run"], ["bash", "-c", f"export HF_TOKEN={REDACTED}; run"], 1),
        (["bash", "-c", "t --password pw12 -x"], ["bash", "-c", f"t --password {REDACTED} -x"], 1),
        (["bash", "-c", 'HF_TOKEN="$TOKEN" t --api-key $K'], ["bash", "-c", 'HF_TOKEN="$TOKEN" t --api-key $K'], 0),
        (["t", "--api-key", "EMPTY", "--max-tokens", "512"], ["t", "--api-key", "EMPTY", "--max-tokens", "512"], 0),
        (["t", "--token", "--verbose"], ["t", "--token", "--verbose"], 0),
        (["h", "run", "--secret", "HF_TOKEN", "t"], ["h", "run", "--secret", "HF_TOKEN", "t"], 0),
        (["t", "--secret", "ABCD_1234"], ["t", "--secret", REDACTED], 1),
        (["t", "--password", "MY_SECRET_KEY"], ["t", "--password", REDACTED], 1),
        (["t", HUGGING], ["t", REDACTED], 1),
        (["t", "+wandb.api_key=qqqqqq", "x=y"], ["t", f"+wandb.api_key={REDACTED}", "x=y"], 1),
    ],
)
def test_OBS_04_argument_vectors(argv: list[str], expected: list[str], hits: int) -> None:
    cleaned, found = redact_argv(argv)
    assert list(cleaned) == expected
    assert len(found) == hits
    assert not any("verysecret" in text or HUGGING in text for text in found)


def test_what_is_redacted_stays_redacted() -> None:
    once = redact_text(
        '{"api_key": "qwertyuiop", "lr": 0.1}\npassword: hunter22\nAuthorization: Bearer abcdefghijklmnop'
    )
    assert "qwertyuiop" not in once
    assert "hunter22" not in once
    assert "abcdefghijklmnop" not in once
    assert '"lr": 0.1' in once
    assert redact_text(once) == once


def test_short_secrets_and_harmless_values_stay() -> None:
    assert redact_text("a b", ["b", "a b"]) == "a b"
    assert redact_code('api_key = "/path/x"\nHF_TOKEN=none\n') == 'api_key = "/path/x"\nHF_TOKEN=none\n'


@each(
    ("text", "hidden"),
    [
        ("a job gets a token with --secret HF_TOKEN (holdfast secret push PLACE HF_TOKEN keeps it)", ""),
        ('with --secret HF_TOKEN, or `--secret WANDB_API_KEY`; else --secret "MY_TOKEN".', ""),
        ("holdfast secret push gpu1 NAME, and --secret NAME (in a job file: secrets: [NAME])", ""),
        ("login --password hunter22 now", "hunter22"),
        ("login --password HUNTER_TWO now", "HUNTER_TWO"),
        ("login --password MY_SECRET_KEY now", "MY_SECRET_KEY"),
        ("login --token AUTH_TOKEN", "AUTH_TOKEN"),
        ("login --client-secret TOP_SECRET", "TOP_SECRET"),
        ("login --token ABCDEFGHIJKLM", "ABCDEFGHIJKLM"),
        ("login --token AB_TOKEN9 now", "AB_TOKEN9"),
        ("login --token ab_token now", "ab_token"),
        ("export HF_TOKEN=MY_TOKEN", "MY_TOKEN"),
        ("password: name", "name"),
    ],
)
def test_OBS_04_the_name_of_a_secret_behind_our_own_option_is_no_secret_and_any_other_value_is(
    text: str, hidden: str
) -> None:
    assert redact_text(text) == (text.replace(hidden, REDACTED) if hidden else text)


FAILED_FIELD = "  Input should be a valid integer, unable to parse [type=int_parsing, input_value={}, input_type=str]\n"
INPUTS = {
    "a field of a secret": (f"db.password\n{FAILED_FIELD}", "'hunter2, x'", True),
    "in one line": (f"1 validation error for Config api_key {FAILED_FIELD}", "'hunter2'", True),
    "cut off": ("api_key\n  Field is wrong [type=string_too_long, input_value={}", "'hunter", True),
    "behind another": (f"lr\n{FAILED_FIELD.format(1)}token\n{FAILED_FIELD}", "'hunter2'", True),
    "another field": (f"token\n{FAILED_FIELD.format(None)}lr\n{FAILED_FIELD}", "'1e-4x'", False),
}


@each("case", INPUTS.values())
def test_OBS_04_a_wrong_value_of_a_secrets_field_is_hidden(case: tuple[str, str, bool]) -> None:
    text, value, is_secret = case
    assert redact_text(text.format(value)) == text.format(REDACTED if is_secret else value)


def test_values_known_to_be_secret_are_found_anywhere() -> None:
    assert redact_text("log: plainword!", ["plainword"]) == f"log: {REDACTED}!"


def test_programs_keep_their_variables_and_lose_their_literals() -> None:
    code = "token = tokenizer.next()\nf(token=token, password=args.password)\nmax_token = 5\n"
    assert redact_code(code) == code
    bad = f'api_key = "qwertyuiop"\n+export HF_TOKEN=abcdef\nclient({{"password": "hunter22"}})\nx = "{GITHUB}"\n'
    cleaned = redact_code(bad)
    for secret in ("qwertyuiop", "abcdef", "hunter22", GITHUB):
        assert secret not in cleaned
    assert redact_code("export HF_TOKEN=$(cat ~/.token)\n") == "export HF_TOKEN=$(cat ~/.token)\n"


@pytest.mark.parametrize("word", ["x" * 200_000, "a." * 100_000, "1" * 200_000, "-" * 200_000])
def test_a_word_without_end_is_looked_through_once(word: str) -> None:
    """From each of its letters anew this would take minutes: the suite's own limit would end it."""
    assert redact_text(f'{{"pad": "{word} HF_TOKEN=verysecret') == f'{{"pad": "{word} HF_TOKEN={REDACTED}'
    assert redact_text("7HF_TOKEN=verysecret --3.api-key=verysecret") == f"7HF_TOKEN={REDACTED} --3.api-key={REDACTED}"


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("error: HF_TOKEN=abcdefgh", "error: HF_TOKEN=[redacted]"),
        ("x=HF_TOKEN=abcdefgh", "x=HF_TOKEN=[redacted]"),
        ("note: a=b, API_KEY: 'xx yy' z", "note: a=b, API_KEY: '[redacted]' z"),
        ('said: "the line was: WANDB_API_KEY=abcdef"', 'said: "the line was: WANDB_API_KEY=[redacted]"'),
    ],
)
def test_a_secret_in_the_value_of_a_harmless_name_is_found(text: str, safe: str) -> None:
    assert redact_text(text) == safe


@each(
    "address",
    [
        "https://open.feishu.cn/open-apis/bot/v2/hook/" + "0123abcd-" * 3,
        "https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=" + "0123abcd-" * 3,
        "https://there.webhook.office.com/webhookb2/" + "0123abcd@ef/IncomingWebhook/" * 2,
        "https://chat.example.org/hooks/" + "abcdefghij" * 3,
    ],
)
def test_the_address_of_a_chat_is_its_own_credential(address: str) -> None:
    assert redact_text(f"posted to {address} just now") == f"posted to {REDACTED} just now"


@each(
    ("address", "safe"),
    [
        ("https://x/y?X-Amz-Credential=ab12ab12&X-Amz-Signature=ab12ab12", "X-Amz-Credential=? X-Amz-Signature=?"),
        ("https://x/y?sv=2024-01&sig=ab%2F12ab", "sv=2024-01 sig=?"),
        ("https://x/y?key=AIzaSyAbcd&n=1", "key=? n=1"),
        ("https://x/y?code=" + "4/0AX4XfWh" * 3, "code=?"),
        ("https://x/y?key=0123abcd-0123-4abc-8def-0123456789ab", "key=?"),
        ("https://x/y?auth=" + "abcdefghij" * 3, "auth=?"),
        ("https://x/y?sig=hunter2hunter2", "sig=?"),
        ("https://x/y?X-Goog-Signature=abcdefghij", "X-Goog-Signature=?"),
    ],
)
def test_an_address_that_is_signed_keeps_its_names_alone(address: str, safe: str) -> None:
    assert redact_text(address) == "https://x/y?" + safe.replace("?", REDACTED).replace(" ", "&")


def test_a_token_before_the_host_is_a_secret_and_a_user_is_none() -> None:
    assert redact_text(f"https://{'abcdefghij' * 2}@git.example/x") == f"https://{REDACTED}@git.example/x"
    assert redact_text(f"https://{HEX[:32]}@git.example/1") == f"https://{REDACTED}@git.example/1"
    for plain in ("ssh://git@git.example/x", "https://x/y?key=on&code=200", "https://x/y#key=abcdefghij"):
        assert redact_text(plain) == plain


@each(
    "plain",
    [
        "https://x/y?key=validation",
        "https://x/y?n=1&key=data/train/shard-000012.tar",
        "https://x/y?key=data%2Ftrain%2Fimagenet2012",
        "https://x/y?code=validation_error.",
        "https://x/y?signature=serving_default",
        "https://x/y?key=1700000000&code=20240101",
        "https://x/y?key=$GOOGLE_API_KEY",
        "https://x/y?key=${MAPS}&n=1",
        "https://x/y?key={dataset}",
    ],
)
def test_words_behind_a_name_that_signs_are_none(plain: str) -> None:
    assert redact_text(plain) == plain


def test_the_address_to_which_errors_are_sent_is_none_without_its_old_password() -> None:
    """The key of a DSN may be published, as the manual of Sentry says."""
    for host in ("o1.ingest.sentry.io", "o1.ingest.us.sentry.io", "sentry.example.com:9000", "sentry.io"):
        assert redact_text(f"https://{HEX[:32]}@{host}/12") == f"https://{HEX[:32]}@{host}/12"
    assert redact_text(f"https://{HEX[:32]}:{HEX[:32]}@sentry.io/12") == f"https://{HEX[:32]}:{REDACTED}@sentry.io/12"
    for other in ("sentry.io/12/x", "sentry.io/x", "example.com/sentry.io/12"):
        assert redact_text(f"https://{HEX[:32]}@{other}") == f"https://{REDACTED}@{other}"


def test_an_address_of_ones_own_is_none() -> None:
    assert redact_text("https://me.example.org/hooks/holdfast") == "https://me.example.org/hooks/holdfast"


def test_a_long_text_of_short_words_is_gone_through_once() -> None:
    """From each of them on a scheme was looked for, up to the end: hours."""
    text = "https://x/?q=1 " + "a-" * 1_000_000
    assert redact_text(text) == text
    assert redact_text(f"{text}postgresql+asyncpg://me:hunter2@db/x").endswith(
        f"postgresql+asyncpg://me:{REDACTED}@db/x"
    )
