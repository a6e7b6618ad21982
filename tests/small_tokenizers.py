"Tokenizers of a few tokens, and a small decoder with random weights for each."

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

LETTERS = [chr(c) for c in range(ord('a'), ord('z') + 1)] + ['▁', '\n', '.', ',']


def of_sentencepiece(words, normalizer=None, legacy=False, begins=False):
    """A Unigram tokenizer; `legacy` puts a space before each text, as Llama 2's does,
    and `begins` a token.
    """
    vocab = [('<unk>', 0.0), ('<s>', 0.0)]
    vocab += [(word, -1.0 - i / 100) for i, word in enumerate(words)]
    vocab += [(c, -9.0) for c in LETTERS if c not in words]
    tokenizer = Tokenizer(models.Unigram(vocab, 0))
    if legacy:
        prefix = [normalizers.Prepend('▁'), normalizers.Replace(' ', '▁')]
        normalizer = normalizers.Sequence(prefix)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.Metaspace()
    if begins:
        tokenizer.post_processor = processors.TemplateProcessing(
            '<s> $A', special_tokens=[('<s>', 1)]
        )
    names = dict(unk_token='<unk>', bos_token='<s>', eos_token='<s>')
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def decoder_for(tokenizer):
    torch.manual_seed(0)
    sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=2)
    sizes |= dict(num_attention_heads=2, max_position_embeddings=64)
    config = LlamaConfig(vocab_size=len(tokenizer), **sizes)
    return LlamaForCausalLM(config).eval()
