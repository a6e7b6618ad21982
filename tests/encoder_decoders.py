"Small encoder-decoders with random weights, without the library."

import torch
import transformers

COMMON = dict(vocab_size=30522, d_model=32, pad_token_id=0, eos_token_id=102)
T5 = COMMON | dict(d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=1, num_heads=4)
T5 |= dict(decoder_start_token_id=0)
STACKS = dict(encoder_layers=2, decoder_layers=1)
STACKS |= dict(encoder_attention_heads=4, decoder_attention_heads=4)
BART = COMMON | STACKS | dict(encoder_ffn_dim=64, decoder_ffn_dim=64)
BART |= dict(decoder_start_token_id=102, bos_token_id=101, max_position_embeddings=64)
MARIAN = BART | dict(share_encoder_decoder_embeddings=False)
WHISPER = COMMON | STACKS | dict(encoder_ffn_dim=48, decoder_ffn_dim=48)
WHISPER |= dict(vocab_size=50, bos_token_id=1, eos_token_id=2)
WHISPER |= dict(decoder_start_token_id=1, begin_suppress_tokens=None, decoder_layers=2)
WHISPER |= dict(num_mel_bins=8, max_source_positions=10, max_target_positions=12)
SPEECH = WHISPER | dict(input_feat_per_channel=8, conv_channels=16)
SIZES = {'T5': T5, 'MT5': T5, 'MarianMTModel': MARIAN, 'Whisper': WHISPER}
SIZES['Speech2Text'] = SPEECH
PROPHET = {k: v for k, v in BART.items() if k not in STACKS}
PROPHET |= {f'num_{k}': v for k, v in STACKS.items()} | dict(hidden_size=32)
SIZES['ProphetNet'] = PROPHET


def widened(model, std):
    "Return a model in eval mode with random weights large enough that inputs matter."
    torch.manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.normal_(0, std)
    return model.eval()


def encoder_decoder(name, std=0.1, **more):
    "Return a small model of a class of transformers; BART's sizes fit most."
    kind = getattr(transformers, name)
    sizes = SIZES.get(name, SIZES.get(name.split('For')[0], BART))
    torch.manual_seed(0)
    return widened(kind(kind.config_class(**sizes | more)), std)
