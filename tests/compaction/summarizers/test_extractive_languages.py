"""Conversations in Chinese, Japanese, Korean, German and Spanish keep their words, rules, questions and decisions."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from everthread.core.summary import ANSWERED, CRITICAL, DECISIONS, DONE, GOAL, HANDOFF, RULES
from tests.compaction.summarizers.extractive_dialogues import COUNTER, Dialogue, lines, summarised, whole


@dataclass(frozen=True)
class Speech:
    """What is said in one language."""

    task: str
    rule: str
    done: str
    question: str
    answer: str
    decision: str
    change: str
    new: str
    note: str


SPEECH = {
    "zh": Speech(
        task="请修复登录页面的错误,密码比较有问题。",
        rule="以后不要修改 migrations 目录。",
        done="已经修好了:现在先做哈希再比较密码,测试全部通过。",
        question="服务用的是哪个端口?",
        answer="服务监听 8443 端口,配置在 config.yaml 里。",
        decision="我们决定用乐观锁来处理日志表,因为冲突很少。",
        change="我改主意了,乐观锁冲突太多。日志表改用咨询锁,密钥 0x4C45。",
        new="咨询锁",
        note="请记住:测试数据库在 db-07.internal,端口 6543。",
    ),
    "ja": Speech(
        task="ログイン画面のエラーを直してください。パスワードの比較がおかしいです。",
        rule="今後は migrations フォルダーを変更しないでください。",
        done="修正しました。先にハッシュ化してからパスワードを比較するようにしました。",
        question="サービスはどのポートを使っていますか？",
        answer="サービスはポート 8443 で待ち受けています。設定は config.yaml にあります。",
        decision="ジャーナルには楽観ロックを使うことにしました。",
        change="やっぱり考えが変わりました。楽観ロックではなく、ジャーナルにはアドバイザリロックを使うことにします。",
        new="アドバイザリロック",
        note="覚えておいて：検証用データベースは db-07.internal、ポート 6543 です。",
    ),
    "ko": Speech(
        task="로그인 화면의 오류를 고쳐 주세요. 비밀번호 비교가 이상합니다.",
        rule="앞으로 migrations 폴더는 수정하지 마세요.",
        done="수정했습니다. 이제 먼저 해시한 다음 비밀번호를 비교합니다.",
        question="서비스는 어떤 포트를 사용하나요?",
        answer="서비스는 8443 포트를 사용하고 설정은 config.yaml 에 있습니다.",
        decision="저널에는 낙관적 잠금을 사용하기로 했습니다.",
        change="생각이 바뀌었어요. 저널에는 낙관적 잠금 대신 권고 잠금을 사용하기로 했습니다.",
        new="권고 잠금",
        note="기억해 주세요: 스테이징 데이터베이스는 db-07.internal, 포트 6543 입니다.",
    ),
    "de": Speech(
        task="Bitte repariere die Anmeldung in der Maske, der Vergleich der Passwörter stimmt nicht.",
        rule="Fass den Ordner migrations niemals an.",
        done="Erledigt: Das Passwort wird jetzt erst gehasht und dann verglichen, alle Tests laufen.",
        question="Welchen Port benutzt der Dienst?",
        answer="Der Dienst lauscht auf Port 8443, das steht in config.yaml.",
        decision="Wir haben uns für optimistisches Sperren beim Journal entschieden.",
        change="Ich habe es mir anders überlegt: Wir nehmen beim Journal statt Sperren jetzt Advisory Locks.",
        new="Advisory Locks",
        note="Merk dir: Die Testdatenbank ist db-07.internal, Port 6543.",
    ),
    "es": Speech(
        task="Por favor arregla el inicio de sesión, la comparación de contraseñas falla.",
        rule="Nunca toques la carpeta migrations.",
        done="Listo: ahora primero se calcula el hash y después se compara la contraseña.",
        question="¿Qué puerto usa el servicio?",
        answer="El servicio escucha en el puerto 8443, según config.yaml.",
        decision="Hemos decidido usar bloqueo optimista para el diario.",
        change="Cambié de opinión: usemos bloqueo consultivo en vez de bloqueo optimista para el diario.",
        new="bloqueo consultivo",
        note="Recuerda: la base de datos de pruebas es db-07.internal, puerto 6543.",
    ),
}


def conversation(speech: Speech) -> Dialogue:
    return (
        Dialogue()
        .user(f"{speech.task}\n{speech.rule}")
        .reads("src/login.py")
        .edits("src/login.py", "def hash_first(): ...", text=speech.done)
        .says(speech.done)
        .user(speech.question)
        .runs("grep port config.yaml", "port: 8443")
        .says(speech.answer)
        .user(speech.decision)
        .says("OK")
        .user(speech.note)
        .says("OK")
        .user(speech.change)
        .says("OK")
    )


@pytest.mark.parametrize("code", SPEECH)
def test_every_section_speaks_the_users_language(code: str) -> None:
    speech = SPEECH[code]
    sections = summarised(conversation(speech), budget=2_000)
    assert speech.task in lines(sections, GOAL)[0]
    assert speech.rule in lines(sections, RULES)
    assert speech.task[:12] in sections[DONE]
    assert speech.done[:20].split(" ")[0] in sections[DONE]
    assert any(line.startswith(speech.question) and "8443" in line for line in lines(sections, ANSWERED))
    assert f"To remember: {speech.note}" in lines(sections, CRITICAL)


@pytest.mark.parametrize("code", SPEECH)
def test_a_decision_that_was_taken_back_is_dropped(code: str) -> None:
    speech = SPEECH[code]
    decided = lines(summarised(conversation(speech), budget=2_000), DECISIONS)
    assert any(speech.new in line for line in decided)
    assert not any(speech.decision in line for line in decided)


@pytest.mark.parametrize("code", SPEECH)
def test_headings_stay_english_and_the_budget_holds(code: str) -> None:
    for budget in (200, 600):
        text = whole(summarised(conversation(SPEECH[code]), budget=budget))
        assert COUNTER.text(text) <= budget
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == list(HANDOFF)


@pytest.mark.parametrize(
    ("code", "topic"),
    [("zh", "登录"), ("ja", "ポート"), ("ko", "비밀번호"), ("de", "Passwörter"), ("es", "contraseñas")],
)
def test_a_topic_is_found_in_any_language(code: str, topic: str) -> None:
    dialogue = conversation(SPEECH[code])
    for number in range(30):
        dialogue.user(f"Rename part {number} of the handbook").edits(f"docs/part_{number}.md").says(
            f"Part {number} is renamed."
        )
    told = whole(summarised(dialogue, budget=900, focus=topic))
    assert topic in told
    assert told.count(topic) >= whole(summarised(dialogue, budget=900)).count(topic)
