"""A sound frame by frame: every method, against the model's own forward."""

import numpy as np
import pytest
from close import assert_close
import torch
import transformers as t
from small_models import WIDEST, build, inputs_for, masked, number, plain, target_for

from lrp_loo import attn_lrp, cp_lrp, explain
from lrp_loo.inputs.targets import Target
from lrp_loo.lrp.conservation import conservation
from lrp_loo.models.objects import as_multi_part

FAMILIES = ('wav2vec2', 'hubert', 'wavlm', 'whisper')
CONFORMERS = ('wav2vec2-bert', 'wav2vec2-conformer', 'audio-spectrogram-transformer')


@pytest.mark.parametrize('family', FAMILIES)
def test_loo_is_that_of_frames_that_nobody_looks_at(family):
    towers = build(family, 'sound', WIDEST)
    (enc, _) = inputs_for(towers, 'sound')
    kind = 'input_features' if family == 'whisper' else 'input_values'
    given = {kind: enc[kind]}
    (a,) = explain(towers.inside, None, [given], 'loo', target=1)
    with torch.no_grad():
        whole = towers.inside(**given).logits[0, 1]
        each = [number(plain(towers, masked(enc, i)), 'sound') for i in range(len(a))]
    assert_close(a.logit, float(whole))
    torch.testing.assert_close(a.scores, whole - torch.stack(each), rtol=0, atol=1e-5)
    assert a.scores.abs().min() > 0 and not a.is_special.any()


@pytest.mark.parametrize('family', FAMILIES)
@pytest.mark.parametrize('rules', [attn_lrp, cp_lrp])
def test_rules_lose_nothing(family, rules):
    towers = build(family, 'sound', WIDEST).double()
    enc = {k: v.double() if v.is_floating_point() else v for k, v in _input(towers)}
    parts = conservation(towers, enc, rules(), target_for('sound'))
    assert abs(parts['remainder']) < 1e-9 * max(map(abs, parts.values()))


def _input(towers):
    return inputs_for(towers, 'sound')[0].items()


@pytest.fixture(scope='module')
def speech():
    towers = build('wav2vec2', 'sound', WIDEST)
    return towers.inside, np.random.default_rng(0).normal(size=1600).astype('float32')


@pytest.mark.parametrize('method', ['attn_lrp', 'auto'])
def test_frames_are_named_by_their_second(speech, method):
    model, wave = speech
    extractor = t.Wav2Vec2FeatureExtractor()
    (a,) = explain(model, extractor, [wave], method)
    read = extractor(wave, sampling_rate=16000, return_tensors='pt')
    with torch.no_grad():
        logits = model(**read).logits[0]
    assert a.target == int(logits.argmax())
    assert_close(a.logit, float(logits.max()))
    assert len(a) == 159 and a.tokens[0] == '0.00 s' and a.tokens[-1] == '0.10 s'
    assert (a.scores != 0).all()


def test_a_recognizer_is_asked_about_a_frame(speech):
    _, wave = speech
    config = build('wav2vec2', 'sound', WIDEST).config
    torch.manual_seed(0)
    model = t.Wav2Vec2ForCTC(config).eval()
    extractor = t.Wav2Vec2FeatureExtractor()
    with pytest.raises(ValueError, match='row per token'):
        explain(model, extractor, [wave])
    (a,) = explain(model, extractor, [wave], 'loo', target=Target(7, position=20))
    read = extractor(wave, sampling_rate=16000, return_tensors='pt')
    with torch.no_grad():
        assert_close(a.logit, float(model(**read).logits[0, 20, 7]))


@pytest.mark.parametrize('family', CONFORMERS)
def test_where_a_frame_goes_on_to_its_neighbours_it_is_refused(family):
    model = build(family, 'sound', WIDEST)
    assert as_multi_part(model) is model
    with pytest.raises(ValueError, match='reads a sound'):
        explain(model, t.Wav2Vec2FeatureExtractor(), [np.zeros(160)])
