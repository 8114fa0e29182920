"""Secrets are redacted, the text around them is kept. Every credential here is made up, and put
together from parts so that scanners do not report this file.
"""

from __future__ import annotations

import base64
import json
import re
import tomllib
from datetime import date
from hashlib import sha512
from importlib import resources
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from everthread.core.secrets.redaction import (
    MARK,
    clip_words,
    find_secrets,
    redact,
    redact_part,
)
from everthread.core.secrets.secret_rules import (
    NameHint,
    Secret,
    find_name_hint,
)
from tests.cpu_limit import cpu_limit
from tests.shared_data import shared_path

BASE62 = ascii_letters + digits
BASE36 = ascii_lowercase + digits
HEX = digits + "abcdef"


def random_text(size: int, alphabet: str = BASE62, seed: str = "") -> str:
    """Return a string that looks random but is always the same."""
    drawn = b"".join(
        sha512(f"{seed}{size}{alphabet}{i}".encode()).digest() for i in range(size // 64 + 1)
    )
    return "".join(alphabet[byte % len(alphabet)] for byte in drawn[:size])


KEY = random_text(24)
HEX40 = random_text(40, HEX)
UUID = "-".join(random_text(n, HEX, "u") for n in (8, 4, 4, 4, 12))
UPPER = ascii_uppercase + "234567"

TOKENS = {
    "aws": "AK" + "IA" + random_text(16, UPPER),
    "aws, temporary": "AS" + "IA" + "Z" * 16,
    "google": "AI" + "zaSy" + random_text(33),
    "google, any": "AI" + "za" + random_text(35),
    "azure": random_text(3) + "8Q" + "~" + random_text(33),
    "digitalocean": "dop" + "_v1_" + random_text(64, HEX),
    "github": "gh" + "p_" + "a1B2" * 9,
    "github, fine-grained": "github" + "_pat_" + random_text(82),
    "gitlab": "gl" + "pat-" + random_text(20),
    "gitlab, routable": "glpat-" + random_text(40) + ".01." + "1" + random_text(7, BASE36),
    "npm": "np" + "m_" + random_text(36),
    "pypi": "py" + "pi-AgEIcHlwaS5vcmc" + random_text(60),
    "anthropic": "sk" + "-ant-api03-" + random_text(93) + "AA",
    "openai": "sk" + "-proj-" + random_text(60),
    "openrouter": "sk" + "-or-v1-" + random_text(64, HEX),
    "huggingface": "h" + "f_" + random_text(34, ascii_letters),
    "slack": "xoxb-"
    + random_text(12, digits)
    + "-"
    + random_text(12, digits)
    + "-"
    + random_text(24),
    "slack hook": "https://hooks.slack"
    ".com/services/T" + random_text(8) + "/B" + random_text(10) + "/" + random_text(24),
    "discord": "MT" + random_text(22) + "." + random_text(6) + "." + random_text(38),
    "telegram": random_text(9, "123456789") + ":" + "AA" + random_text(33),
    "twilio": "S" + "K" + random_text(32, HEX),
    "sendgrid": "S" + "G." + random_text(22) + "." + random_text(43),
    "stripe": "sk" + "_live_" + random_text(24),
    "shopify": "shp" + "at_" + random_text(32, HEX),
    "vault": "hv" + "s." + random_text(95),
    "terraform": random_text(14) + ".atlas" + "v1." + random_text(64),
    "mailchimp": random_text(32, HEX) + "-us" + "12",
    "jwt": "eyJ" + random_text(20) + ".ey" + "J" + random_text(40) + "." + random_text(43),
    "jwt, unsigned": "ey" + "J" + random_text(20) + ".ey" + "J" + random_text(40),
    "1password": "A3-" + "-".join(random_text(n, UPPER, "p") for n in (6, 6, 5, 5, 5, 5)),
    "artifactory": "AK" + "C" + random_text(70),
    "facebook": random_text(15, "123456789") + "|" + random_text(27),
}

SECRETS_IN_TEXT = [
    ("export DB_PASSWORD=SECRET", "hunter2x"),
    ("db_pass: SECRET", "S3cr3t!"),
    ('{"password": "SECRET", "user": "bob"}', "hunter2!"),
    ('{\\"password\\": \\"SECRET\\"}', "hunter2!"),
    ("password: 'SECRET'", "12904876"),
    ("my password is SECRET", "hunter2"),
    ("the api key is SECRET", KEY),
    ("API_KEY=SECRET", KEY),
    ("X-Api-Key: SECRET", KEY),
    ('os.environ["API_TOKEN"] = "SECRET"', KEY),
    ('headers.set("X-Auth-Token", "SECRET")', KEY),
    ("client_secret = SECRET", HEX40),
    ("access_token: SECRET", UUID),
    ('key: "SECRET"', KEY),
    ("a:AccountKey=SECRET;Suffix=x", random_text(86) + "=="),
    ("Server=x;User Id=sa;Password=SECRET;", "P@ss-w0rd!"),
    ("<password>SECRET</password>", "hunter2!"),
    ('<add key="Password" value="SECRET" />', "hunter2!"),
    ("- name: API_TOKEN\n  value: SECRET\n", KEY),
    ("| password | SECRET |", "hunter2x"),
    ("密码是SECRET，请记住", "hunter2"),
    ("パスワードは SECRET です", "hunter2x"),
    ("Passwort: SECRET", "hunter2x"),
    ("--password SECRET --verbose", "hunter2x"),
    ("--api-key=SECRET run", KEY),
    ("postgresql://bob:SECRET@db.test:5432/app", "s3cr3t"),
    ("redis://:SECRET@localhost:6379/0", "s3cr3tpw"),
    ("https://SECRET@github.com/a/b.git", KEY),
    ("https://x.test/a?v=1&sig=SECRET&z=2", KEY),
    ("https://x.test/a?token=SECRET&z=2", KEY),
    ('curl -H "Authorization: Bearer SECRET" x', KEY),
    ("Authorization: Basic SECRET", "dXNlcjpvcGVu"),
    ("send Bearer SECRET with it", KEY),
    ("Set-Cookie: sid=SECRET; theme=dark", KEY),
    ("curl -u elastic:SECRET https://x", "P@ssw0rd$1"),
    ("curl -u 'bob:SECRET' https://x", "s3 cr3t"),
    ('curl --user "SECRET:" https://x', KEY),
    ("datadog = 'SECRET'", random_text(40, BASE36)),
    ("HEROKU: SECRET", UUID),
    ("asana => SECRET", "4829105736418205"),
    ("log\\nSECRET\\n", TOKENS["github"]),
    ("/botSECRET/getMe", TOKENS["telegram"]),
    ('password: "SECRET"', "Tr0ub4dor and 3 horses"),
    ("DB_PASS='SECRET' psql", "my dog Rex2019!"),
    ('密码是:"SECRET"，请记住', "my dog Rex2019!"),
    ('the passphrase is "SECRET".', "correct horse battery staple"),
    ('{"password": "SECRET"}', "blue R1ver stone"),
    ('{"password":"SECRET"}', "Open sesame 42 now"),
    ("Le mot de passe est « SECRET »", "Vz3!pol88kd"),
    ("password: SECRET", "Tr0ub4dor&3"),
    ("curl -d 'password=SECRET&next=/home'", "hunter2xyz"),
    ("a=1&amp;password=SECRET&amp;next=2", "hunter2xyz"),
    ("密码是:SECRET", "hunter2Xy9"),
    ("密码是：SECRET", "hunter2Xy9"),
    ("the password is: SECRET", "hunter2Xy9"),
    ("Das Passwort lautet SECRET", "Gx8$kdl29Qa"),
    ("密钥=SECRET", "n8nOz27vGPuKaGmSaWHGOKxG8pKHBJwJ"),
    ("访问令牌：SECRET", "q13TcoKBzDPhYD5nlo0Laa8nzFTkmUip"),
    ("mysql -uroot -pSECRET", "Jx82kd!0aZ"),
    ("sshpass -p SECRET", "Pq0!28dkw"),
    ("docker login registry.io -u bob -p SECRET", "Lw9!x02kdQ"),
    ("machine api.example.com login bob password SECRET", "Wm28!dkqp0"),
    ("AccountKey=SECRET", "/a9K/" + "Kd93kdKDk3kd93kdq7" * 4 + "aA=="),
]

TEXTS_WITHOUT_SECRETS = [
    "password = get_password()",
    "relogin --verbose -p Zq8xW2kLm4x",
    "the old.password Zq8xW2kLm4x",
    "password = user.password2",
    'password = os.environ["DB_PASSWORD"]',
    "password: str",
    "token: Optional[str] = None",
    "password=$DB_PASSWORD",
    "password: ${DB_PASSWORD}",
    'password: "{{ vault_pw1 }}"',
    "password: !vault |",
    "password: changeme",
    "password: password1",
    "password: bob@mail.test",
    "('user', 'password', 'localhost:22')",
    '"password": "Must2 contain digits"',
    'password: "пароль12"',
    "def login(user, password, host1234):",
    '"api_key": "your-api-key-a1b2c3d4"',
    "api_key=<token>",
    "api_key=" + "x" * 32,
    "token=abcdef0123456789",
    "the token is expired",
    "max_tokens: 4096",
    f"cache_key = '{HEX40}'",
    f"key = '{HEX40}'",
    f"key: {UUID}",
    f"commit {HEX40}",
    f"datadog_commit_sha: {HEX40}",
    f"datadog: {UUID}",
    f"sentry_event_id: {HEX40}",
    f"sumOfValues = {random_text(64, BASE36)}",
    f"linear: call_{KEY}",
    f"request_id: {UUID}",
    f'"tool_call_id": "toolu_{KEY}"',
    f"key=toolu_{KEY}",
    f"chatcmpl-{KEY}",
    f"next_page_token: {KEY}",
    f'"integrity": "sha512-{random_text(86)}=="',
    f"token: sha256:{random_text(64, HEX)}",
    f"public_key = {random_text(64)}",
    "PWD=/home/user/project2",
    "monkeys-audio:mx64-uwp-build",
    "key_name: prod5zyxlmy-cmk",
    "secretName: db-credentials-v2",
    f'"auth": "token={KEY[:3]}"',
    "https://user:password@host/",
    "https://user:${PW}@host/",
    "https://some-quite-ordinary-name@host/",
    "https://x.test/a?sig=none",
    "https://x.test/a?sig=of-an-ordinary-kind",
    "my_session=" + "a" * 30,
    "Authorization: Bearer <token>",
    "Authorization: Basic realm-of-things",
    "bearer of bad news",
    "Cookie: consent=accepted-by-visitor",
    "cookie jar",
    "curl -u $USER:$PASS https://x",
    "curl -u bob:pw https://x",
    "tar -u bob:s3cr3t",
    "curl --user 'bob:' https://x",
    "--key-file a.pem --verbose",
    "A3-XXXXXX-XXXXXX-XXXXX-XXXXX-XXXXX-XXXXX",
    "ghu_" + "x" * 36,
    "AK" + "IAIOSFODNN7EXAMPLE",
    "bot" + TOKENS["telegram"],
    "glpat-" + "x" * 20,
    "hf_generatedByHomeAppForDebuggingPurposes",
    f"data:image/png;base64,{random_text(400)}",
    f"ssh-rsa AAAAB3NzaC1yc2E{random_text(300)} bob@host",
    f"password: {MARK}",
    f"postgresql://bob:{MARK}@db.test/app",
    "",
    "short",
    'password = "Please enter your password"',
    'password: "must be at least 8 characters"',
    'password: "Minimum 8 letters or digits"',
    'password: "The password field is required."',
    "errors.password = 'is too short'",
    'password: "too short for this site"',
    'secret: "blue R1ver stone"',
    'password: "one two"',
    'password: "<your own Pa55 word>"',
    "密码是:不正确",
    "令牌数：48211",
    "password is: required",
    "the password reset2go sent",
    "mysql -p shop2024 < dump.sql",
    "ssh login -p 2222",
    "key_file = /etc/ssl/private/key.pem",
    "Basic authentication is required; see Authorization: Digest realm=x",
    "curl -H 'Authorization: Digest realm=x' https://example.com/0123456789abcdef0123456789abcdef",
    "localhost:5432:mydb",
    "aa:bb:cc:dd:ee:ff",
    "host:5432:db:user:$PGPASSWORD",
    "src/a.py:1234:56:error:unused_variable_x1",
    "2026:11:17:23:59:59",
    "kind: Secret\nmetadata:\n  name: db-credentials\n",
    "kind: ConfigMap\ndata:\n  uri: cG9zdGdyZXM6Ly9hOmJAYy9k\n",
    "kind: Secret\ndata:\n  password: ${PASSWORD}\n",
    "+ echo hello world",
    "echo $TOKEN | docker login --password-stdin",
    "fw_config_loader_settings and re_compile_pattern, key_error_handling",
    "pa-systems-and-other-things-we-have-in-stock-now",
    "fc-cache -f -v; rpa_robotic_process; cog_in_the_machine",
    "the user must login with their password first",
    "see https://example.com/ and …sig=" + random_text(40),
]


@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS.keys())
def test_redacts_tokens_in_any_context(token: str) -> None:
    for before, after in (
        ("", ""),
        ("see ", " there"),
        ('x("', '")'),
        ("a=", "\n"),
    ):
        text = redact(before + token + after)
        assert MARK in text
        assert text.startswith(before)
        assert text.endswith(after)
        assert token[-12:] not in text


@pytest.mark.parametrize(("text", "secret"), SECRETS_IN_TEXT)
def test_redacts_only_the_secret(text: str, secret: str) -> None:
    assert redact(text.replace("SECRET", secret)) == text.replace("SECRET", MARK)


@pytest.mark.parametrize("text", TEXTS_WITHOUT_SECRETS)
def test_returns_text_without_secrets_unchanged(text: str) -> None:
    assert find_secrets(text) == []
    assert redact(text) is text


class TestPrivateKeys:
    BODY = "\n".join(random_text(64, BASE62 + "+/", str(i)) for i in range(5))
    BEGIN = "-----BEGIN RSA PRIVATE KEY-----"
    END = "-----END RSA PRIVATE KEY-----"

    def test_keeps_the_begin_and_end_lines(self) -> None:
        text = f"a\n{self.BEGIN}\n{self.BODY}\n{self.END}\nb"
        assert redact(text) == f"a\n{self.BEGIN}\n{MARK}\n{self.END}\nb"

    def test_redacts_a_key_in_a_json_string(self) -> None:
        text = json.dumps({"k": f"{self.BEGIN}\n{self.BODY}\n{self.END}\n"})
        assert redact(text) == f'{{"k": "{self.BEGIN}\\n{MARK}\\n{self.END}\\n"}}'

    def test_redacts_a_key_without_its_end(self) -> None:
        assert redact(f"{self.BEGIN}\n{self.BODY}\nand so on") == f"{self.BEGIN}\n{MARK}\nand so on"

    def test_truncated_key_before_a_complete_one(self) -> None:
        text = f"{self.BEGIN}\n{self.BODY}\n{self.BEGIN}\n{self.BODY}\n{self.END}"
        assert redact(text) == f"{self.BEGIN}\n{MARK}\n{self.BEGIN}\n{MARK}\n{self.END}"

    @pytest.mark.parametrize(
        "body", ["see the docs of your provider for what belongs here", "...", "A" * 64]
    )
    def test_keeps_mentions_without_a_key(self, body: str) -> None:
        text = f"{self.BEGIN}\n{body}\n{self.END}"
        assert redact(text) is text

    def test_keeps_public_keys(self) -> None:
        text = f"-----BEGIN PUBLIC KEY-----\n{self.BODY}\n-----END PUBLIC KEY-----"
        assert redact(text) is text


def test_redacts_very_long_secrets_completely() -> None:
    for text in (
        f"api_key={random_text(5000)}",
        f"datadog={random_text(5000)}",
        f'token: "{random_text(5000)}"',
    ):
        assert redact(text)[-20:].count(MARK) == 1
        assert len(redact(text)) < 30


def test_merges_overlapping_secrets() -> None:
    text = "GITHUB_TOKEN=" + TOKENS["github"] + f" password={random_text(20)}!x"
    secrets = find_secrets(text)
    assert [text[s.start : s.end] for s in secrets] == [
        TOKENS["github"],
        random_text(20) + "!x",
    ]
    assert redact("password=!a." + TOKENS["facebook"] + " x") == f"password={MARK} x"


def test_name_in_a_url_does_not_redact_the_host() -> None:
    assert (
        redact(f"https://x-access-token:{KEY}@a.test/b.git")
        == f"https://x-access-token:{MARK}@a.test/b.git"
    )


def test_reports_kind_and_position() -> None:
    token = TOKENS["github"]
    assert find_secrets(f"x {token}") == [Secret(2, 2 + len(token), "github")]


def test_lower_casing_does_not_shift_positions() -> None:
    """Positions are found in the lower-case text, and one letter is longer there than in the text."""
    longer_letters = [letter for letter in map(chr, range(0x110000)) if len(letter.lower()) != 1]
    assert longer_letters == ["İ"]
    assert redact("İİİ password=hunter2x İ") == f"İİİ password={MARK} İ"


@pytest.mark.parametrize("value", [None, 3, b"password=hunter2x", ["x"]])
def test_ignores_values_that_are_not_text(value: object) -> None:
    assert find_secrets(value) == []  # type: ignore[arg-type]  # what a careless caller may pass
    assert redact(value) is value  # type: ignore[arg-type]  # the same


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("dbPassword", NameHint.PASSWORD),
        ("MYSQL_PWD", NameHint.PASSWORD),
        ("password_confirmation", NameHint.PASSWORD),
        ("bypass", NameHint.NOTHING),
        ("aws_secret_access_key", NameHint.SECRET),
        ("X-Api-Key", NameHint.SECRET),
        ("githubtoken", NameHint.SECRET),
        ("TOKEN_2", NameHint.SECRET),
        ("tokens", NameHint.NOTHING),
        ("token_count", NameHint.NOTHING),
        ("credentialsId", NameHint.NOTHING),
        ("publicKey", NameHint.NOTHING),
        ("key", NameHint.KEY),
        ("my_key", NameHint.KEY),
        ("monkey", NameHint.NOTHING),
        ("", NameHint.NOTHING),
    ],
)
def test_last_words_of_a_name_decide(name: str, level: NameHint) -> None:
    assert find_name_hint(name) is level


@pytest.mark.parametrize(
    "text",
    [
        KEY,
        random_text(16, BASE36),
        random_text(32, HEX),
        random_text(34, ascii_letters),
        random_text(20),
    ],
)
def test_redacts_random_values_of_secret_names(text: str) -> None:
    assert redact(f"secret={text}") == f"secret={MARK}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "!!!!!!!!!!",
        "a1B2c3",
        "1208358310",
        "a" * 40,
        "0123456789abcdefghij",
        "PdfEncryptionKeySize.Key128Bit",
        "input_audio_output_tokens",
        "getAccessTokenFromStorage",
        "python3.11-slim-bookworm",
        "cmp2-qat-1208358310",
    ],
)
def test_keeps_written_values_of_secret_names(text: str) -> None:
    assert redact(f"secret={text}") == f"secret={text}"


PIECES = st.sampled_from(
    [
        *TOKENS.values(),
        *(text.replace("SECRET", secret) for text, secret in SECRETS_IN_TEXT),
        *TEXTS_WITHOUT_SECRETS,
        *"=:\"'`\\/@-_.,;<>{}[]()|&? \n",
        "password",
        "token",
        "key",
        "adobe",
        "://",
        "curl -u ",
        "Bearer ",
        "-----BEGIN PRIVATE KEY-----",
        "-----END PRIVATE KEY-----",
        MARK,
        KEY,
        HEX40,
        "hunter2x",
    ]
)
TEXTS = st.lists(PIECES | st.text(max_size=12), max_size=12).map("".join)


@given(TEXTS)
@settings(max_examples=150)
@example("")
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    """Finds are ordered, disjoint and inside the text; other text is kept; redacting twice changes nothing."""
    at = 0
    kept = []
    for secret in find_secrets(text):
        assert at <= secret.start < secret.end <= len(text)
        assert MARK not in text[secret.start : secret.end]
        kept.append(text[at : secret.start])
        at = secret.end
    once = redact(text)
    assert once == redact(MARK.join([*kept, text[at:]]))
    assert redact(once) is once


@pytest.mark.parametrize(
    "unit",
    [
        *(
            "a",
            "A",
            "0",
            "=",
            "-",
            '"',
            "\\",
            "/",
            ".",
            " ",
            "a=",
            "key=",
            "key:",
            'token="',
            "password=aB1!",
            "?token=",
        ),
        *(
            "-----BEGIN",
            "-----BEGIN PRIVATE KEY-----",
            "KEY-----",
            "://a:",
            "https://a:b@",
            "bearer ",
            "authorization:",
        ),
        *(
            "cookie: a=",
            "curl -u a:",
            "--password ",
            "adobe=",
            "adobe=a1b2c3",
            "sk-a-",
            "eyJa.",
            "xoxb-1-",
            "MTA",
            "AKC",
        ),
        *(
            "hooks.slack.com/services/",
            "_session=",
            "glpat-",
            "密码：",
            "key is ",
            "\\n",
            "İ",
            "s.a1",
            "a0bQ~",
            "1:A",
        ),
    ],
)
def test_hostile_repetition_takes_linear_time(unit: str) -> None:
    """A quadratic scan of a text this long would exceed the limit many times over."""
    text = unit * (40_000 // len(unit))
    with cpu_limit(f"redact on {unit!r}", 2):
        assert redact(text)


def test_two_megabytes_of_base64_are_fine() -> None:
    data = base64.b64encode(random_text(100_000).encode()).decode()
    text = "data:image/png;base64," + data * 15
    assert redact(text) is text


def test_recall_and_false_positives_on_recorded_data() -> None:
    rows = [
        json.loads(line)
        for line in shared_path("secrets.b64.jsonl").read_text("utf-8").splitlines()
    ]
    gone = []
    changed = []
    for row in rows:
        text = _plain(row["text_b64"])
        if row["is_secret"]:
            gone.append(_plain(row.get("secret_b64") or row["text_b64"]) not in redact(text))
        else:
            changed.append(redact(text) != text)
    assert sum(gone) / len(gone) >= 0.98
    assert sum(changed) / len(changed) <= 0.04


def _plain(encoded: str) -> str:
    return base64.b64decode(encoded).decode("utf-8", "replace")


def test_part_cut_inside_a_secret_reveals_nothing() -> None:
    token = "ghp_" + "a1B2c3D4e5" * 4
    text = f"before {token} between {token} after"
    first = text.index(token)
    second = text.rindex(token)
    part = redact_part(text, first + 10, second + 10, margin=200)
    assert part == f"{MARK} between {MARK}"
    assert redact_part(text, 0, 6, margin=200) == "before"


@pytest.mark.parametrize(
    "form", ["{}", "API_KEY={}", "postgres://ledger:{}@db/ledger", "token: '{}'"]
)
def test_clipping_leaves_no_partial_secret(form: str) -> None:
    """Wherever the text is cut, the secret is missing, redacted, or complete enough to be recognized."""
    secret = TOKENS["github"]
    text = f"deploy with {form.format(secret)} to the staging machine of the harbour team and wait for it"
    for room in range(len(text) + 2):
        clipped = clip_words(text, room)
        assert len(clipped) <= room
        assert secret[:8] not in redact(clipped)


def test_clips_at_word_boundaries() -> None:
    assert clip_words("one two three", 20) == "one two three"
    assert clip_words("one, two, three", 12) == "one, two…"
    assert clip_words("src/" + "a" * 40, 10) == "src/aaaaa…"
    assert [clip_words("one two", room) for room in (-1, 0, 1)] == ["", "", "…"]


def test_redacts_before_clipping() -> None:
    assert "staple" not in clip_words(
        'login with password="correct horse battery staple tomorrow" and then more', 50
    )


def test_every_rule_names_its_source_and_date() -> None:
    data = tomllib.loads(
        resources.files("everthread.core").joinpath("data/secrets.toml").read_text("utf-8")
    )
    assert all(re.fullmatch("[0-9a-f]{16}", digest) for digest in data["published"])
    sources = data["sources"]
    assert all(
        isinstance(source["read"], date) and source["url"] and source["what"]
        for source in sources.values()
    )
    assert {row["source"] for row in data["token"] + data["pattern"]} == sources.keys()


MODERN = {
    "google, 2026": "A" + "Q.Ab8RN6" + random_text(44, seed="aq"),
    "together": "tgp" + "_v1_" + random_text(43),
    "fireworks": "f" + "w_" + random_text(24, seed="fw"),
    "wandb": "wandb" + "_v1_" + random_text(77),
    "vercel": "vc" + "p_" + random_text(56),
    "vercel gateway": "vc" + "k_" + random_text(56),
    "cerebras": "cs" + "k-" + random_text(48, BASE36),
    "cloudflare user": "cf" + "ut_" + random_text(40) + random_text(8, HEX),
    "cloudflare account": "cf" + "at_" + random_text(40) + random_text(8, HEX),
    "cursor": "ke" + "y_" + random_text(64, HEX),
    "deno": "dd" + "p_" + random_text(36),
    "devin": "apk" + "_user_" + random_text(140),
    "voyage": "p" + "a-" + random_text(43),
    "firecrawl": "f" + "c-" + random_text(32, HEX),
    "resend": "r" + "e_" + random_text(8) + "_" + random_text(24),
    "runpod": "rp" + "a_" + random_text(42, ascii_uppercase + digits),
    "azure": random_text(52, seed="az") + "JQQ" + "J99BFAC77bzfXJ3w3AAABACOG" + random_text(4),
}


@pytest.mark.parametrize("token", MODERN.values(), ids=MODERN)
def test_redacts_keys_of_current_providers(token: str) -> None:
    assert redact(f"It is {token}, as said.") == f"It is {MARK}, as said."
    assert token not in redact(json.dumps({"text": f"curl -d '{token}'"}))


BASE64 = "Ym9iOkh1bnRlcjIhIQ=="
SIGNED = random_text(64, HEX, "signed")
MAC = random_text(43, seed="mac")
PLACES = {
    "AWS4-HMAC-SHA256": (
        f"Authorization: AWS4-HMAC-SHA256 Credential=x/2026/s3, Signature={SIGNED}",
        SIGNED,
    ),
    "Digest": (
        f'Authorization: Digest username="bob", uri="/", response="{random_text(32, HEX)}"',
        random_text(32, HEX),
    ),
    "Digest in JSON": (
        f'{{"Authorization": "Digest username=\\"bob\\", response=\\"{SIGNED}\\""}}',
        SIGNED,
    ),
    "Hawk": (f'authorization: Hawk id="dh37", mac="{MAC}="', MAC),
    "Negotiate": (f"> Authorization: Negotiate {random_text(120)}", random_text(120)),
    "DPoP": (f"-H 'Authorization: DPoP {MAC}'", MAC),
    "SharedKey": (f"Authorization: SharedKey account:{MAC}=", MAC),
    "SharedAccessSignature": (
        f"Authorization: SharedAccessSignature sr=x&sig={MAC}%3D&se=1",
        MAC,
    ),
    "GenieKey": (f"Authorization: GenieKey {UUID}", UUID),
    "PVEAPIToken": (f"Authorization: PVEAPIToken=root@pam!mon={UUID}", UUID),
    "kubeconfig": (
        f"    client-key-data: LS0tLS1CRUdJTiBSU0EgUFJJVkFUR{random_text(300)}=",
        random_text(300),
    ),
    "manifest": (
        "apiVersion: v1\nkind: Secret\ndata:\n  uri: cG9zdGdyZXM6Ly9hOmJAYy9k\n",
        "cG9zdGdyZXM6Ly9hOmJAYy9k",
    ),
    "manifest, kind last": (
        "data:\n  conf: aHVudGVyMg==\nkind: Secret\n",
        "aHVudGVyMg==",
    ),
    "manifest, plain": (
        "kind: Secret\nstringData:\n  conn: hunter2hunter\n",
        "hunter2hunter",
    ),
    "manifest, lines": (
        "kind: Secret\nstringData:\n  conf: |\n    user bob\n    word hunter2\n",
        "word hunter2",
    ),
    "manifest, JSON": (
        '{"kind":"Secret","data":{"conf":"cG9zdGdyZXM6Ly9"}}',
        "cG9zdGdyZXM6Ly9",
    ),
    "manifest, list": (
        '{"items":[{"kind":"Secret","data":{"a":"eA=="}},{"kind":"Secret","data":{"conf":"cG9zdGdyZXM6Ly9"}}]}',
        "cG9zdGdyZXM6Ly9",
    ),
    "pgpass": ("localhost:5432:mydb:bob:hunter2!", "hunter2!"),
    "pgpass, any": ("# mine\n*:*:*:postgres:s3cretpw\n", "s3cretpw"),
    "netrc": ("machine api.x.com login bob password Hunter22", "Hunter22"),
    "trace": (f"+ export 'API_TOKEN={MAC}'", MAC),
    "trace, ANSI quotes": (f"+ TOKEN=$'{MAC}'", MAC),
    "trace, variable": ("+ PGPASSWORD=hunter2 psql -h db", "hunter2"),
    "trace, piped": (
        "+ echo hunter2xyz9\n+ docker login --password-stdin",
        "hunter2xyz9",
    ),
    "piped": (
        "echo hunter2xyz9 | docker login ghcr.io --password-stdin",
        "hunter2xyz9",
    ),
    "openssl": ("+ openssl enc -aes-256-cbc -k hunter22x -in f", "hunter22x"),
}


@pytest.mark.parametrize(("text", "secret"), PLACES.values(), ids=PLACES)
def test_redacts_values_in_secret_contexts(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in redact(text)
