"""ContextCite, asked as `peer_protocol` says: the sentences of a context.

(pip install torch==2.13.0 context-cite==0.0.4 transformers==5.23.0)

It asks through a chat template; the item's text is given as it is, by a
template that adds nothing. What it explains is log p/(1 − p) of the answer.
"""

from context_cite import ContextCiter
from context_cite.context_partitioner import BaseContextPartitioner
from peer_protocol import main, prompt_of

AS_IT_IS = "{{ messages[0]['content'] }}"


class Sentences(BaseContextPartitioner):
    "The item's own sentences, in place of NLTK's."

    def __init__(self, item):
        super().__init__(item['context'])
        self.spans = item['sentences']

    @property
    def num_sources(self):
        return len(self.spans)

    def split_context(self):
        "They are given."

    def get_source(self, index):
        start, end = self.spans[index]
        return self.context[start:end]

    def get_context(self, mask=None):
        "A sentence goes with the space in front of it."
        if mask is None:
            return self.context
        shown, end = '', 0
        for keep, (start, stop) in zip(mask, self.spans):
            shown += self.context[end:stop] if keep else ''
            end = stop
        return shown.lstrip() + self.context[end:]


def sentences(model, tokenizer, item, num_ablations=64):
    tokenizer.chat_template = AS_IT_IS
    # braces of the text itself are no places of the template
    before, after = (
        item[side].replace('{', '{{').replace('}', '}}') for side in ('before', 'after')
    )
    citer = ContextCiter(
        model,
        tokenizer,
        item['context'],
        '',
        num_ablations=num_ablations,
        prompt_template=before + '{context}' + after,
        partitioner=Sentences(item),
    )
    citer._cache['output'] = prompt_of(item) + item['answer']
    same = citer._get_prompt_ids() == item['prompt_ids']
    same &= citer._response_ids == item['continuation_ids']
    return citer.get_attributions(verbose=False).tolist(), same


METHODS = {('context', 'context_cite'): (sentences, 'log p/(1 − p)')}

if __name__ == '__main__':
    main(['context-cite'], METHODS)
