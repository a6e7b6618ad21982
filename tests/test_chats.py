"""Chats with tools, results of tools and reasoning: every part's score against a pass of
the prompt that the template wrote, with the part's tokens masked by hand.
"""

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lrp_loo import attribute_context, audit_generation, explain_generation, load_demo

# short forms of what families of models write
QWEN = """{% if tools %}system: {% for tool in tools %}
{{ tool | tojson }}{% endfor %}
{% endif %}{% for m in messages %}{% set thought = m.reasoning_content or '' %}\
{% set text = m.content or '' %}{% if '</think>' in text %}\
{% set thought = text.split('</think>')[0].split('<think>')[-1] %}\
{% set text = text.split('</think>')[-1] %}{% endif %}{{ m.role }}: \
{% if m.role == 'assistant' and loop.last or thought %}<think>
{{ thought.strip() }}
</think>

{% endif %}{{ text.strip() }}
{% endfor %}{% if add_generation_prompt %}assistant:{% if enable_thinking is false %} \
<think>

</think>{% endif %}{% endif %}"""
LLAMA = """{% for m in messages %}<{{ m.role }}>
{% if loop.first and tools %}Functions: {% for tool in tools %}
{{ tool | tojson(indent=4) }}{% endfor %}

{% endif %}{{ m.content | trim }}</{{ m.role }}>{% endfor %}\
{% if add_generation_prompt %}<assistant>{% endif %}"""
MISTRAL = """{% for m in messages %}{% if m.role == 'user' %}\
{% if loop.last and tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}[INST]\
{{ m.content }}[/INST]{% elif m.role == 'tool' %}[RESULT]{{ m.content }}[/RESULT]\
{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"""
HARMONY = """{% for tool in tools or [] %}// {{ tool.function.description }}
type {{ tool.function.name }} = () => any;
{% endfor %}{% for m in messages %}|{{ m.role }}|{% if m.thinking %}\
analysis {{ m.thinking }} final {% endif %}{{ m.content }}|end|{% endfor %}\
{% if add_generation_prompt %}|assistant|{% endif %}"""
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}It is"
TEMPLATES = dict(QWEN=QWEN, LLAMA=LLAMA, MISTRAL=MISTRAL, HARMONY=HARMONY, PLAIN=PLAIN)
TOOL = dict(name='look', description='Finds a "film".', parameters={})
TOOLS = [dict(type='function', function=TOOL)]
CHAT = [
    dict(role='user', content='Which film?'),
    dict(role='tool', content='A dull story.'),
    dict(role='user', content='Is it fine?'),
]
ANSWER = ' so dull'


@pytest.fixture(scope='module')
def tokenizers():
    own = load_demo('reviews')[1]
    tokenizers = {name: copy.deepcopy(own) for name in TEMPLATES}
    for name, template in TEMPLATES.items():
        tokenizers[name].chat_template = template
        tokenizers[name].model_max_length = 4096
    return tokenizers


@pytest.fixture(scope='module')
def model(tokenizers):
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2)
    sizes['vocab_size'] = len(tokenizers['QWEN'])
    config = LlamaConfig(**sizes, num_attention_heads=4, eos_token_id=None)
    model = LlamaForCausalLM(config).eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.3)
    return model


@torch.no_grad()
def masked(model, tokenizer, text, part=''):
    "Log-probability of the answer after a prompt, without the tokens of one part."
    enc = tokenizer(
        text, add_special_tokens=False, return_offsets_mapping=True, return_tensors='pt'
    )
    spans = enc['offset_mapping'][0].tolist()
    new = tokenizer(ANSWER, add_special_tokens=False, return_tensors='pt')['input_ids']
    ids = torch.cat([enc['input_ids'], new], 1)
    mask = torch.ones_like(ids)
    if part:
        assert text.count(part) == 1
        start = text.index(part)
        for i, (a, b) in enumerate(spans):
            inside = range(max(a, start), min(b, start + len(part)))
            is_space = not text[a:b].strip() and start <= a < start + len(part)
            if is_space or any(not text[c].isspace() for c in inside):
                mask[0, i] = 0
    logits = model(input_ids=ids, attention_mask=mask).logits[0].log_softmax(-1)
    n = enc['input_ids'].shape[1]
    return sum(
        float(logits[n - 1 + i, token]) for i, token in enumerate(new[0].tolist())
    )


def check(model, tokenizer, text, chat, parts, **options):
    "Compare the scores of the parts of a chat with passes by hand."
    steps = explain_generation(
        model, tokenizer, chat, ANSWER, 'loo', units='passage', **options
    )
    (n,) = {step.info['chat'] for step in steps}
    assert n and [name.partition('] ')[2] for name in steps[0].tokens] == parts
    whole = masked(model, tokenizer, text)
    assert sum(step.logit for step in steps) == pytest.approx(whole, abs=1e-4)
    for k, part in enumerate(parts):
        score = sum(float(step.scores[k]) for step in steps)
        without = masked(model, tokenizer, text, part)
        assert score == pytest.approx(whole - without, abs=1e-4)
    assert abs(whole - without) > 1e-3  # a case that could fail


@pytest.mark.parametrize('name', ['QWEN', 'LLAMA', 'MISTRAL', 'HARMONY'])
def test_tools_and_their_results_are_units(model, tokenizers, name):
    tokenizer = tokenizers[name]
    text = tokenizer.apply_chat_template(
        CHAT, tools=TOOLS, tokenize=False, add_generation_prompt=True
    )
    written = TOOL['description'] if name == 'HARMONY' else 'Finds a \\"film\\".'
    contents = [m['content'] for m in CHAT]
    parts = sorted([written, *contents], key=text.index)
    check(model, tokenizer, text, CHAT, parts, tools=TOOLS)


def look(name: str) -> str:
    """Finds a film.

    Args:
        name: of the film
    """


def test_a_function_is_a_tool(model, tokenizers):
    tokenizer = tokenizers['LLAMA']
    text = tokenizer.apply_chat_template(
        CHAT, tools=[look], tokenize=False, add_generation_prompt=True
    )
    parts = ['Finds a film.', *(m['content'] for m in CHAT)]
    check(model, tokenizer, text, CHAT, parts, tools=[look])


STEPS = ['It has a cast.', 'Nobody laughed.']


@pytest.mark.parametrize(
    ('name', 'turn'),
    [
        ('QWEN', dict(content='Fine.', reasoning_content='\n\n'.join(STEPS))),
        (
            'QWEN',
            dict(content='<think>\n' + '\n\n'.join(STEPS) + '\n</think>\n\nFine.'),
        ),
        ('PLAIN', dict(content='<think>' + '\n\n'.join(STEPS) + '</think>Fine.')),
        ('HARMONY', dict(content='Fine.', thinking='\n\n'.join(STEPS))),
    ],
)
def test_steps_of_reasoning_are_units(model, tokenizers, name, turn):
    tokenizer = tokenizers[name]
    chat = [CHAT[0], dict(role='assistant', **turn), CHAT[2]]
    text = tokenizer.apply_chat_template(
        chat, tokenize=False, add_generation_prompt=True
    )
    check(model, tokenizer, text, chat, ['Which film?', *STEPS, 'Fine.', 'Is it fine?'])


def test_reasoning_that_a_template_leaves_out_is_no_unit(model, tokenizers):
    tokenizer = tokenizers['LLAMA']
    turn = dict(role='assistant', content='Fine.', reasoning_content='Nobody laughed.')
    chat = [CHAT[0], turn, CHAT[2]]
    text = tokenizer.apply_chat_template(
        chat, tokenize=False, add_generation_prompt=True
    )
    check(model, tokenizer, text, chat, ['Which film?', 'Fine.', 'Is it fine?'])


@pytest.mark.parametrize(
    'turn',
    [
        dict(content='', reasoning_content='\n\n'.join(STEPS)),
        dict(content='<think>\n' + '\n\n'.join(STEPS)),
    ],
)
def test_a_chat_that_ends_inside_reasoning_is_continued(model, tokenizers, turn):
    chat = [CHAT[0], dict(role='assistant', **turn)]
    text = 'user: Which film?\nassistant: <think>\n' + '\n\n'.join(STEPS)
    check(model, tokenizers['QWEN'], text, chat, ['Which film?', *STEPS])


def test_a_chat_that_cannot_be_continued_is_refused_in_our_words(model, tokenizers):
    turn = dict(role='assistant', content='', reasoning_content='Nobody laughed.')
    with pytest.raises(ValueError, match='ends inside the assistant') as e:
        explain_generation(model, tokenizers['LLAMA'], [CHAT[0], turn], ANSWER)
    assert 'CONTENT' not in str(e.value)


def test_options_of_the_template_reach_it(model, tokenizers):
    tokenizer, options = tokenizers['QWEN'], dict(enable_thinking=False)
    text = tokenizer.apply_chat_template(
        CHAT, tokenize=False, add_generation_prompt=True, **options
    )
    assert text.endswith('</think>')
    contents = [m['content'] for m in CHAT]
    check(model, tokenizer, text, CHAT, contents, template_options=options)
    prompts = [CHAT, [*CHAT[:2], dict(role='user', content='Was it dull?')]]
    table = audit_generation(
        model,
        tokenizer,
        prompts,
        'removal',
        max_new_tokens=2,
        progress=False,
        template_options=options,
        tools=TOOLS,
    )
    assert table.n.tolist() == [2, 2] or 'refused' in table


@pytest.mark.parametrize(
    ('name', 'prompt', 'options'),
    [
        ('QWEN', CHAT, dict(template_options=dict(enable_thinkin=False))),
        ('PLAIN', CHAT, dict(tools=TOOLS)),
        ('QWEN', 'A film', dict(tools=TOOLS)),
    ],
)
def test_what_has_no_effect_is_refused(model, tokenizers, name, prompt, options):
    with pytest.raises(ValueError, match=r'(enable_thinkin|tools) has no effect'):
        explain_generation(model, tokenizers[name], prompt, ANSWER, **options)


def test_passages_tools_and_reasoning_are_units_of_one_context(model, tokenizers):
    tokenizer, passages = tokenizers['QWEN'], ['One is long.', 'One is short.']
    turn = dict(
        role='assistant', content='I look.', reasoning_content='\n\n'.join(STEPS)
    )
    messages = [
        CHAT[0],
        turn,
        dict(role='tool', content='{context}'),
        dict(role='tool', content='No more.'),
        dict(role='user', content='{question}'),
    ]
    a = attribute_context(
        model,
        tokenizer,
        passages,
        ANSWER,
        'Is it fine?',
        'loo',
        messages=messages,
        tools=TOOLS,
    )
    filled = [dict(m) for m in messages]
    filled[2]['content'], filled[4]['content'] = '\n\n'.join(passages), 'Is it fine?'
    text = tokenizer.apply_chat_template(
        filled, tools=TOOLS, tokenize=False, add_generation_prompt=True
    )
    parts = [*passages, 'Finds a \\"film\\".', *STEPS, 'No more.']
    assert [name.partition('] ')[2] for name in a.tokens] == parts
    whole = masked(model, tokenizer, text)
    for score, part in zip(a.scores.tolist(), parts, strict=True):
        without = masked(model, tokenizer, text, part)
        assert score == pytest.approx(whole - without, abs=1e-4)
    assert a.logit == pytest.approx(whole, abs=1e-4)
