"""Chat templates cut at their contents. The templates are in the manner of well-known models."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_dsl.errors import ModelLoadError, RoleError
from sglang_dsl.runtime.text.jinja_template import JinjaTemplate, compile_template
from sglang_dsl.runtime.text.tokenizer import ChatMlTemplate, ChatTemplate, LabelTemplate, Turn

CHATML = """{% for m in messages %}
{% if loop.first and m['role'] != 'system' %}
{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}
{%- endif %}
{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
{%- set front = messages[0]['content'] + '\n\n' -%}{%- set rest = messages[1:] -%}
{%- else -%}{%- set front = '' -%}{%- set rest = messages -%}{%- endif -%}
{%- for m in rest -%}
{%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif -%}
{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' + (front if loop.first else '') }}
{{- m['content'] | trim + '<end_of_turn>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"""

MISTRAL = """{%- if messages[0]['role'] == 'system' -%}
{%- set system = messages[0]['content'] -%}{%- set rest = messages[1:] -%}
{%- else -%}{%- set rest = messages -%}{%- endif -%}
{{- bos_token }}
{%- for m in rest -%}
{%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('roles must alternate') }}{%- endif -%}
{%- if m['role'] == 'user' -%}
{%- if loop.last and system is defined -%}{{ '[INST] ' + system + '\n\n' + m['content'] + '[/INST]' }}
{%- else -%}{{ '[INST] ' + m['content'] + '[/INST]' }}{%- endif -%}
{%- else -%}{{ ' ' + m['content'] + eos_token }}{%- endif -%}
{%- endfor -%}"""

THINKING = """{%- for m in messages -%}
{{ '<|im_start|>' + m.role + '\n' }}
{%- if m.role == 'assistant' and loop.last -%}{{ '<think>\n\n</think>\n\n' }}{%- endif -%}
{{ m.content + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"""

LAST_ONLY = """{%- for m in messages -%}{{ '[' + m.role + ']' + m.content }}
{%- if loop.last -%}{{ '<end>' }}{%- else -%}{{ '|' }}{%- endif -%}{%- endfor -%}"""

TOOLS = """{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{{ '<results>' if loop.first or loop.previtem.role != 'tool' else ', ' }}{{ m.content }}
{%- if loop.last or loop.nextitem.role != 'tool' -%}{{ '</results>' }}{%- endif -%}
{%- else -%}{{ '[' + m.role + ']' + m.content + ';' }}{%- endif -%}
{%- endfor -%}"""

USER_ONLY = "{% for m in messages %}{% if m.role == 'user' %}U:{{ m.content }}\n{% endif %}{% endfor %}"
VARIABLES = {"bos_token": "<bos>", "eos_token": "</s>"}


def turns(*roles: str) -> list[Turn]:
    return [Turn(role, f"text of {role}") for role in roles]


def prompt(template: ChatTemplate, *messages: tuple[str, str]) -> str:
    """What a program's appends give, up to the end of the last content (which stays open)."""
    text = ""
    for i, (role, content) in enumerate(messages):
        before = [Turn(r, c) for r, c in messages[:i]]
        if i:
            text += template.close_turn(before)
        text += template.open_turn(before, role) + content
    return text


def rendered(source: str, *messages: tuple[str, str]) -> str:
    dicts = [{"role": role, "content": content} for role, content in messages]
    text = compile_template(source).render(messages=dicts, add_generation_prompt=False, **VARIABLES)
    return text[: text.rindex(messages[-1][1]) + len(messages[-1][1])]


@pytest.mark.parametrize("source", [CHATML, GEMMA, LAST_ONLY, TOOLS], ids=["chatml", "gemma", "last_only", "tools"])
@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_template_prompt_equals_the_templates_own_rendering(source, length):
    template = JinjaTemplate(source, VARIABLES)
    tried = 0
    for roles in product(("system", "user", "assistant", "tool"), repeat=length):
        messages = [(role, f"«{i}»") for i, role in enumerate(roles)]
        try:
            ours = prompt(template, *messages)
        except RoleError:
            continue
        if source == GEMMA and roles[-1] == "system":
            continue  # shown only once a user turn follows
        assert ours == rendered(source, *messages), roles
        tried += 1
    assert tried >= 1


def test_template_opens_and_closes_turns_at_the_contents():
    template = JinjaTemplate(CHATML)
    assert template.open_turn([], "system") == "<|im_start|>system\n"
    assert template.open_turn([], "user") == ("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n")
    assert template.close_turn(turns("user")) == "<|im_end|>\n"
    assert template.open_turn(turns("user"), "assistant") == "<|im_start|>assistant\n"


def test_template_generation_prompt_opens_the_answer():
    template = JinjaTemplate(THINKING)
    assert template.open_turn(turns("user"), "assistant") == "<|im_start|>assistant\n"
    assert template.open_turn(turns("user", "assistant"), "user") == "<|im_start|>user\n"


def test_template_that_writes_no_generation_prompt_opens_the_answer_as_in_history():
    template = JinjaTemplate(MISTRAL, VARIABLES)
    assert template.close_turn(turns("user")) == "[/INST]"
    assert template.open_turn(turns("user"), "assistant") == " "
    assert template.close_turn(turns("user", "assistant")) == "</s>"


def test_template_that_folds_system_text_into_the_user_turn_is_followed():
    template = JinjaTemplate(GEMMA, VARIABLES)
    assert prompt(template, ("system", "Be kind."), ("user", "Hi")) == ("<bos><start_of_turn>user\nBe kind.\n\nHi")


def test_template_that_joins_neighbouring_turns_closes_them_when_another_role_follows():
    template = JinjaTemplate(TOOLS)
    talk = [("user", "u"), ("tool", "1"), ("tool", "2"), ("assistant", "a")]
    assert prompt(template, *talk) == "[user]u;<results>1, 2</results>[assistant]a"
    assert template.close_turn(turns("user", "tool")) == ""
    assert template.open_turn(turns("user", "tool"), "user") == "</results>[user]"


def test_template_that_moves_the_system_text_keeps_it_where_it_was_first():
    template = JinjaTemplate(MISTRAL, VARIABLES)
    text = prompt(template, ("system", "S"), ("user", "a"), ("assistant", "b"), ("user", "c"))
    assert text == "<bos>[INST] S\n\na[/INST] b</s>[INST] c"
    assert not template.report().stable
    assert template.report().rewritten_chars > 0


def test_template_report_names_what_would_be_rewritten():
    report = JinjaTemplate(THINKING).report()
    assert report.rewrites == ()  # history is written as the generation prompt wrote it
    moved = JinjaTemplate("{% for m in messages %}{{ loop.length }}{{ m.content }}{% endfor %}").report()
    assert "message 0 (user) of user/assistant/user: first '1', later '3'" in moved.rewrites


def test_template_stable_report():
    assert JinjaTemplate(CHATML).report().stable
    assert JinjaTemplate(GEMMA, VARIABLES).report().stable


@given(st.text(max_size=40))
def test_template_content_stays_as_it_is(content):
    template = JinjaTemplate(GEMMA, VARIABLES)
    text = prompt(template, ("user", content), ("assistant", "ok"))
    assert text == f"<bos><start_of_turn>user\n{content}<end_of_turn>\n<start_of_turn>model\nok"


# --- roles and orders the template refuses (case 2) ------------------------------------------------------------------

ALTERNATING = """{%- for m in messages -%}
{%- if m.role != ['user', 'assistant'][loop.index0 % 2] -%}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif -%}
{{ '[' + m.role + ']' + m.content + '\n' }}{%- endfor -%}"""


@pytest.mark.parametrize(
    ("roles", "index"),
    [
        (["system", "user"], 0),
        (["user", "user"], 1),
        (["user", "assistant", "assistant"], 2),
        (["user", "system"], 1),
        (["tool"], 0),
        (["developer", "user"], 0),
    ],
)
@pytest.mark.parametrize("kind", ["jinja", "chatml"])
def test_template_refused_role_is_an_error_with_the_message_and_the_templates_words(roles, index, kind):
    template: ChatTemplate = JinjaTemplate(ALTERNATING) if kind == "jinja" else ChatMlTemplate(alternate=True)
    for i in range(index):
        template.open_turn(turns(*roles[:i]), roles[i])
    with pytest.raises(RoleError, match=f"message {index}") as caught:
        template.open_turn(turns(*roles[:index]), roles[index])
    assert repr(roles[index]) in caught.value.what
    if roles[index] != "developer" or kind == "jinja":
        assert "must alternate user/assistant/user/assistant" in caught.value.what


def test_template_that_leaves_a_role_out_is_an_error_not_a_silent_drop():
    template = JinjaTemplate(USER_ONLY)
    assert template.open_turn([], "user") == "U:"
    with pytest.raises(RoleError, match="does not show every message"):
        template.open_turn([], "system")


def test_template_that_fails_on_a_message_is_an_error_with_its_words():
    template = JinjaTemplate("{% for m in messages %}{{ m.content + m.parts }}{% endfor %}")
    with pytest.raises(RoleError, match="has no attribute 'parts'"):
        template.open_turn([], "user")


def test_template_refusal_after_many_turns_names_the_last_of_them():
    template = JinjaTemplate(ALTERNATING)
    many = turns(*["user", "assistant"] * 10)
    with pytest.raises(
        RoleError, match=r"message 20 after \[\.\.\., user, assistant, user, assistant, user, assistant\]"
    ):
        template.open_turn(many, "tool")


def test_template_with_a_syntax_error_is_refused_with_the_line():
    with pytest.raises(ModelLoadError, match="line 2"):
        JinjaTemplate("ok\n{% for %}")


def test_template_cannot_reach_out_of_its_sandbox():
    template = JinjaTemplate("{{ messages.__class__.__mro__ }}{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(RoleError, match="unsafe"):
        template.open_turn([], "user")


def test_template_may_use_what_transformers_gives_it():
    source = (
        "{%- for m in messages -%}{%- if loop.index0 > 5 -%}{%- break -%}{%- endif -%}"
        "{% generation %}{{ {'ä': strftime_now('%Y') | length} | tojson }}{{ m.content }}{% endgeneration %}{%- endfor -%}"
    )
    assert JinjaTemplate(source).open_turn([], "user") == '{"ä": 4}'


def test_template_renders_an_order_of_roles_once():
    calls = []
    template = JinjaTemplate(
        "{{ count() }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}",
        {"count": lambda: calls.append(1) or ""},
    )
    template.open_turn(turns("system"), "user")
    first = len(calls)
    for _ in range(40):
        template.open_turn(turns("system"), "user")
    assert len(calls) == first


def test_label_template_is_plain_text():
    assert prompt(LabelTemplate(), ("user", "Hi"), ("assistant", "")) == "User: Hi\n\nAssistant: "


def test_chatml_template_puts_its_default_system_turn_in_front():
    template = ChatMlTemplate(default_system="Be kind.")
    assert template.open_turn([], "user") == "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n"
    assert template.open_turn(turns("user"), "assistant") == "<|im_start|>assistant\n"
