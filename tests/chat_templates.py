"""Chat templates in the shapes that well-known model families use, written for these tests."""

from __future__ import annotations

from collections.abc import Sequence

import jinja2
from byte_tokenizer import CHATML

LLAMA2 = """
{%- if messages[0]['role'] == 'system' -%}
{%- set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' -%}
{%- set rest = messages[1:] -%}
{%- else -%}{%- set system = '' -%}{%- set rest = messages -%}{%- endif -%}
{%- for m in rest -%}
{%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('roles must alternate user/assistant') }}{%- endif -%}
{%- if loop.first -%}{%- set content = system + m['content'] -%}
{%- else -%}{%- set content = m['content'] -%}{%- endif -%}
{%- if m['role'] == 'user' -%}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{%- else -%}{{ ' ' + content.strip() + ' ' + eos_token }}{%- endif -%}
{%- endfor -%}
"""

LLAMA3 = (
    "{% for m in messages %}"
    "{% set text = '<|start|>' + m['role'] + '<|close|>\n\n' + m['content'] | trim + '<|eot|>' %}"
    "{% if loop.first %}{% set text = bos_token + text %}{% endif %}{{ text }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant<|close|>\n\n' }}{% endif %}"
)

GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set prefix = messages[0]['content'] + '\\n\\n' -%}{%- set rest = messages[1:] -%}
{%- else -%}{%- set prefix = '' -%}{%- set rest = messages -%}{%- endif -%}
{%- for m in rest -%}
    {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('roles must alternate') }}
    {%- endif -%}
    {%- set role = 'model' if m['role'] == 'assistant' else m['role'] -%}
    {{ '<turn>' + role + '\\n' + (prefix if loop.first else '') -}}
    {{ m['content'] | trim }}{{ '<eot>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<turn>model\\n' }}{%- endif -%}
"""

MISTRAL = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('After the optional system message, roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% elif m['role'] == 'assistant' %}{{ m['content'] + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}"
    "{% endfor %}"
)

PHI = """{% for m in messages %}
{% if m['role'] in ('system', 'user') %}
{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}
{% elif m['role'] == 'assistant' %}
{% generation %}{{ '<|assistant|>\n' + m['content'] + '<|end|>\n' }}{% endgeneration %}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}
"""

ZEPHYR = """{% for m in messages %}
{% if m['role'] == 'user' %}
{{ '<|user|>\n' + m['content'] + eos_token }}
{% elif m['role'] == 'system' %}
{{ '<|system|>\n' + m['content'] + eos_token }}
{% elif m['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + m['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

# Shows the thought of the last answer only, so history changes as the conversation goes on.
FORGETS_THOUGHTS = """
{%- for m in messages -%}
{%- set content = m['content'] -%}
{%- if m['role'] == 'assistant' -%}
    {%- set answer = content.split('</think>')[-1].lstrip('\\n') -%}
    {%- if loop.last -%}
        {%- set thought = '' -%}
        {%- if '</think>' in content -%}
            {%- set thought = content.split('</think>')[0].split('<think>')[-1] -%}
        {%- endif -%}
        {%- set content = '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + answer -%}
    {%- else -%}{%- set content = answer -%}{%- endif -%}
{%- endif -%}
{{ '<|im_start|>' + m['role'] + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""

# The system text goes into the last user message, wherever that is.
MOVES_SYSTEM = (
    "{% set system = messages[0]['content'] if messages[0]['role'] == 'system' else '' %}"
    "{% for m in messages if m['role'] != 'system' %}"
    "{% if m['role'] == 'user' %}[U]{% if loop.last %}{{ system }}{% endif %}{{ m['content'] }}[/U]"
    "{% else %}{{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}"
)

SPECIALS = (
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start|>", "<|close|>", "<|eot|>", "<turn>",
    "<eot>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>",
)  # fmt: skip
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}

WITH_SYSTEM = ("system", "user", "assistant", "user", "assistant")
WITHOUT_SYSTEM = ("user", "assistant", "user", "assistant", "user")
PIECEWISE: dict[str, tuple[str, list[tuple[str, ...]]]] = {
    "chatml": (CHATML, [WITH_SYSTEM, WITHOUT_SYSTEM, ("assistant", "user"), ("user", "user")]),
    "llama2": (LLAMA2, [WITH_SYSTEM, WITHOUT_SYSTEM]),
    "llama3": (LLAMA3, [WITH_SYSTEM, WITHOUT_SYSTEM, ("user", "tool", "assistant")]),
    "gemma": (GEMMA, [WITH_SYSTEM, WITHOUT_SYSTEM]),
    "mistral": (MISTRAL, [WITHOUT_SYSTEM]),
    "phi": (PHI, [WITH_SYSTEM, WITHOUT_SYSTEM]),
    "zephyr": (ZEPHYR, [WITH_SYSTEM, WITHOUT_SYSTEM]),
}
REWRITING = {"forgets-thoughts": FORGETS_THOUGHTS, "moves-system": MOVES_SYSTEM}


def reference(source: str, messages: Sequence[tuple[str, str]], opens: bool = False) -> str:
    """The whole conversation through plain jinja2: what a template's authors tested."""
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    source = source.replace("{% generation %}", "{% if true %}")
    source = source.replace("{% endgeneration %}", "{% endif %}")
    dicts = [{"role": role, "content": content} for role, content in messages]
    names = NAMES | {"raise_exception": _refuse}
    text: str = environment.from_string(source).render(
        messages=dicts, add_generation_prompt=opens, **names
    )
    return text


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
