"What a call computes, counted: a change that raises a count fails here."

import sys
from collections import Counter

import pytest
from conftest import OPINIONS, shallow_demo

from lrp_loo import explain
from lrp_loo.methods.table import METHODS

# of three texts, once shortcuts were tried on the model: forward passes, tokens of an
# encoder; of a decoder; module steps a module
COUNTS = {name: (1, 51, 1, 48, 36) for name in METHODS} | {
    **dict.fromkeys(['auto', 'loo'], (3, 604, 4, 391, 36)),
    **{'auto 3': (1, 51, 1, 48, 36), 'auto 7': (4, 371, 4, 391, 42)},
    'ig': (5, 981, 4, 784, 30),
}


@pytest.mark.parametrize('i, method', [(i, name) for i in range(2) for name in COUNTS])
def test_a_call_computes_no_more(i, method):
    (model, tokenizer), counts = shallow_demo(['sst2', 'reviews-sst2'][i]), Counter()
    name, *passes = method.split()

    def profile(frame, event, arg):
        name = frame.f_code.co_qualname if event == 'call' else ''
        if name.endswith('.forward') and frame.f_locals.get('self') is model:
            ids, x = (frame.f_locals[k] for k in ('input_ids', 'inputs_embeds'))
            counts.update(passes=1, tokens=(x[..., 0] if ids is None else ids).numel())
        elif name == 'PreTrainedTokenizerBase.__call__':
            counts['texts'] += 1 if isinstance(frame.f_locals['text'], str) else 3
        counts['steps'] += name == 'Module.named_modules'

    options = {'passes': int(p) for p in passes}
    first = explain(model, tokenizer, OPINIONS[:3], name, **options)
    sys.setprofile(profile)
    again = explain(model, tokenizer, OPINIONS[:3], name, **options)
    sys.setprofile(None)
    assert [a.passes for a in first] == [a.passes for a in again]
    assert counts['texts'] == 3
    assert (counts['passes'], counts['tokens']) == COUNTS[method][2 * i : 2 * i + 2]
    assert counts['steps'] <= COUNTS[method][4] * len(list(model.modules()))
