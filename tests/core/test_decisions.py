"""What a user settles, with the why, and what a later word takes back."""

from __future__ import annotations

import pytest

from everthread.core.decisions import MOST, decided, decided_by_user, reasoned, statements, taken_back, told_in

SETTLED = [
    "Right, Kafka it is then.",
    "Fine, we keep SQLite for the tests.",
    "After the review we settled on a monorepo.",
    "The exports go to S3 rather than to the NAS, backups are simpler there.",
    "I've picked Vue over React, the team knows it.",
    "We won't support Windows in the first release.",
    "The billing job moves to Sunday night from now on.",
    "Decision: one repository per team.",
    "Outcome of the call: exports go to S3, not to the NAS.",
    "The partner API will be GraphQL, partners asked for it.",
    "Dann bleiben wir bei Jenkins, die Migration ist zu teuer.",
    "Wir verzichten auf die App, das Web reicht.",
    "Al final nos quedamos con Angular porque el equipo lo conoce.",
    "那我们就选方案二，成本更低。",
    "結局、AWSで行くことにしました。",
    "결국 쿠버네티스로 가기로 했습니다.",
    "OK, we're going with option B.",
    "Good point, let's do server-side rendering then.",
    "We agreed yesterday to freeze the schema until May.",
    "Then MongoDB is out, we stay relational.",
    "I've decided: no GraphQL this year.",
    "Let's settle on 5 retries with a 2 second pause.",
    "The first release will only support German.",
    "We want to launch in March, so offline mode is cut.",
    "We'll go serverless because the traffic is spiky.",
    "Fine by me, take the cheaper plan.",
    "Finally: the logo stays blue.",
    "Management chose Azure over AWS because of the contract.",
    "Wir machen das mit Kafka, die anderen kennen es schon.",
    "Entschieden: kein Offline-Modus.",
    "Hemos acordado cerrar el soporte a las 18 horas.",
    "我们最后选择了蓝色的标志。",
    "ロゴは青に決まりました。",
    "로고는 파란색으로 결정했습니다.",
]
NOTHING = [
    "Why did we pick Kafka?",
    "Please add a test.",
    "The page loads slowly.",
    "I see an error when I click save.",
    "Run it again.",
    "Does the queue keep its order?",
    "Write the audit events to the log instead of printing them, please.",
]


@pytest.mark.parametrize("sentence", SETTLED)
def test_a_user_settles_things_in_many_words(sentence: str) -> None:
    assert [decision.text for decision in decided_by_user(sentence)] == [sentence]


@pytest.mark.parametrize("sentence", NOTHING)
def test_questions_requests_and_reports_settle_nothing(sentence: str) -> None:
    assert decided_by_user(sentence) == []


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (
            "Fine, Kafka it is. The ordering guarantees are good.",
            "Fine, Kafka it is. The ordering guarantees are good.",
        ),
        ("Legal vetoed the logo. We go with the blue one.", "Legal vetoed the logo. We go with the blue one."),
        ("We drop IE support; nobody uses it. Fix the menu.", "We drop IE support; nobody uses it."),
        ("We keep IE because a client uses it. The menu is next.", "We keep IE because a client uses it."),
        ("We go with Vue. Add it to package.json.", "We go with Vue."),
        ("I changed my mind about Vue. Use Svelte instead.", "I changed my mind about Vue. Use Svelte instead."),
        ("那就用 Kafka。它的顺序有保证。", "那就用 Kafka。它的顺序有保证。"),
        ("It is too slow. We go with Vue. " + "x" * MOST, "It is too slow. We go with Vue."),
    ],
)
def test_a_decision_comes_with_the_sentences_that_belong_to_it(said: str, text: str) -> None:
    assert [decision.text for decision in decided_by_user(said)] == [text]


def test_a_long_story_settles_nothing_unless_it_says_so() -> None:
    tale = "When we came to the office that day " + "and talked and talked " * 12 + "we keep smiling."
    assert decided_by_user(tale) == []
    assert decided_by_user(tale.replace("we keep smiling", "we decided to stop")) != []
    assert decided_by_user("We decided it, " + "and so on " * 40) == []


def test_a_decision_of_anybody_goes_on_after_a_colon() -> None:
    assert decided("Thanks. We decided: \nOne repository.") == ["We decided: One repository."]
    assert decided("We decided:") == ["We decided:"]
    assert decided("Nothing here.") == []


def test_what_is_told_is_neither_asked_nor_requested() -> None:
    said = "The host is db-7. Fix the login. Is it up? Key `A1` is for staging."
    assert told_in(said) == ["The host is db-7.", "Key `A1` is for staging."]


def test_a_decision_says_why() -> None:
    assert reasoned("I chose Vue because the team knows it.")
    assert not reasoned("明白，改用分区表。")


TAKEN_BACK = [
    (
        "Let's use Kafka for the audit events.",
        "On second thought, no Kafka for audit events: operations refuses. Take RabbitMQ.",
    ),
    ("We keep the retention at 30 days.", "Retention goes up to 90 days, the auditors insist."),
    ("Let's put the logs into Loki.", "Scrap Loki for the logs, operations said no. We take Splunk."),
    ("We use Okta for the login.", "We're leaving Okta: the login moves to Keycloak because of the price."),
    ("我们用 Travis 做构建。", "构建不再用 Travis，换成 Drone。"),
    ("Wir setzen im Lager auf Zebra.", "Kommando zurück im Lager: statt Zebra nehmen wir Honeywell."),
    ("We go with option B for the header.", "Hmm, option B for the header doesn't work on phones. Option C then."),
    ("Let's name the package lantern.", "lantern is taken, the package is named beacon."),
    ("We'll use pnpm in the monorepo.", "Back to npm in the monorepo, pnpm broke the CI."),
    ("The admin area gets its own subdomain.", "No own subdomain for the admin area, it goes under /admin."),
    ("Wir nutzen Tailwind im Shop.", "Tailwind fliegt im Shop wieder raus, wir nehmen einfaches CSS."),
    ("Usaremos PostgreSQL para el catálogo.", "Al final el catálogo no va en PostgreSQL, usaremos MySQL."),
    ("ロゴは青にします。", "ロゴは青ではなく緑に変更します。"),
    ("The mobile app will be called Finch.", "We renamed the mobile app: it is Sparrow now, not Finch."),
    ("We'll host the docs on Netlify.", "Scratch the Netlify plan for the docs, we move them to GitHub Pages."),
    ("We go with REST for the partner API.", "The partner API will be GraphQL, partners asked for it."),
    ("Let's use SQLite for the cache.", "I changed my mind about the cache."),
    ("Wir nehmen Jenkins für die Builds.", "Vergiss Jenkins, für die Builds nehmen wir jetzt GitLab."),
    ("Usaremos Stripe para los pagos.", "Cambio de planes: para los pagos ya no usamos Stripe sino Adyen."),
    ("我们决定用 Kafka 处理订单。", "订单不用 Kafka 了，改成 RabbitMQ。"),
    ("検索にはSolrを使うことにします。", "やっぱり検索はSolrではなくElasticsearchにします。"),
    ("검색에는 Solr를 쓰기로 했습니다.", "검색은 Solr 대신 Elasticsearch로 바꾸기로 했습니다."),
]


@pytest.mark.parametrize(("earlier", "later"), TAKEN_BACK)
def test_a_later_word_takes_a_decision_back(earlier: str, later: str) -> None:
    assert any(taken_back(statement, ["We go by train.", earlier]) == [1] for statement in statements(later))


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("We keep the retention at 30 days.", "We'll use Redis for the sessions."),
        ("Let's use Kafka for the audit events.", "Write the audit events to the log instead of printing them."),
        ("The mobile app will be called Finch.", "The mobile app no longer crashes."),
        ("We decided to keep all timestamps in UTC.", "Log timestamps are wrong now, look at them."),
        ("We go with Vue for the shop.", "We go with Vue for the shop."),
    ],
)
def test_other_words_leave_it_alone(earlier: str, later: str) -> None:
    assert not any(taken_back(statement, [earlier]) for statement in statements(later))


def test_an_outright_retraction_means_the_one_that_shares_most() -> None:
    later = statements("I changed my mind about the cache.")[0]
    earlier = [
        "The cache keys hold region, tenant, user and version.",
        "We go by train.",
        "SQLite is the cache we use.",
    ]
    assert taken_back(later, earlier) == [2]
    closer = "The eviction of the cache runs hourly on every replica, region, tenant, cluster and shard."
    again = statements("I changed my mind about the cache eviction.")[0]
    assert taken_back(again, [closer, "The cache keys hold region, tenant, user, shard and version."]) == [0]
