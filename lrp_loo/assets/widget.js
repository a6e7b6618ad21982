// What the browser does of `reports.widget`: it draws what the kernel says
// (`answer`) and asks for what the reader wants (`query`), one request at a time.
const make = (kind, name, parent, more = {}) => {
  const node = Object.assign(document.createElement(kind), { className: name }, more);
  parent.append(node);
  return node;
};
const same = (a, b) => a.passes === b.passes && `${a.removed}` === `${b.removed}`;
const SLOW = 2; // seconds without an answer before a notice is shown

function render({ model, el }) {
  const box = make('div', 'lrp-loo lrp-live', el);
  const spent = make('b', 'spent', make('div', '', box));
  const explained = make('small', 'explained', spent.parentNode);
  const sentence = make('div', 'words', box, { dir: 'auto' });
  sentence.setAttribute('role', 'group');
  sentence.setAttribute('aria-label', 'words: choose one to remove it, or to put it back');
  const number = make('div', 'number', box);
  number.setAttribute('aria-live', 'polite');
  const changed = make('small', 'changed', box);
  const controls = make('div', 'controls', box);
  const label = make('label', 'budget', controls);
  make('span', '', label, { textContent: 'budget' });
  const slider = make('input', '', label, { type: 'range', step: 1 });
  const passes = make('output', 'n', label);
  const back = make('button', 'back', controls, { type: 'button', textContent: 'put all back' });
  const state = make('div', 'state', box);
  state.setAttribute('role', 'status');
  const legend = make('div', '', box);

  const own = Math.random().toString(36).slice(2);
  let wanted = null; // what the reader wants, while it is not all there
  let sent = 0;
  let since = null; // when the request was sent that is not answered
  let at = 0; // the word that the keyboard is on
  let hinted = '';

  const wish = () => {
    const { removed, budget } = model.get('answer');
    return wanted ?? { removed, passes: budget };
  };

  function send() {
    since = Date.now();
    sent += 1;
    model.set('query', { ...wanted, request: `${own}-${sent}` });
    model.save_changes();
  }

  // the latest wish wins: what was wanted in between is never computed
  function ask(change) {
    wanted = { ...wish(), ...change };
    draw();
    if (since === null) send();
  }

  function toggle(i) {
    const { removed } = wish();
    const others = removed.filter((k) => k !== i);
    const more = others.length === removed.length ? [...removed, i] : others;
    ask({ removed: more.sort((a, b) => a - b) });
  }

  function draw_word(button, word, i, removed) {
    button.textContent = word.text;
    const title = removed.includes(i) && !word.title.endsWith('removed') ? word.text : word.title;
    button.title = word.fixed ? `${title} (stays)` : title;
    button.className = ['t', word.sign, word.apart && 'apart', word.pale && 'pale'].filter(Boolean).join(' ');
    button.style.cssText = word.apart || removed.includes(i) ? '' : word.style;
    button.setAttribute('aria-pressed', removed.includes(i));
    button.setAttribute('aria-label', button.title);
    button.setAttribute('aria-disabled', Boolean(word.fixed));
    button.tabIndex = i === at ? 0 : -1;
  }

  function draw() {
    const answer = model.get('answer');
    const want = wish();
    const pending = since !== null || wanted !== null;
    spent.textContent = answer.spent;
    explained.textContent = ` · ${answer.explained}`;
    while (sentence.children.length > answer.words.length) sentence.lastChild.remove();
    answer.words.forEach((word, i) => {
      let spot = sentence.children[i];
      if (!spot) {
        spot = make('span', '', sentence);
        const button = make('button', 't', spot, { type: 'button' });
        button.addEventListener('click', () => choose(i));
        button.addEventListener('focus', () => (at = i));
      }
      spot.className = word.gap ? 'gap' : '';
      draw_word(spot.firstChild, word, i, want.removed);
    });
    number.textContent = [answer.without && `${answer.without}:`, answer.number].filter(Boolean).join(' ');
    if (answer.before) make('small', '', number, { textContent: answer.before });
    changed.textContent = answer.changed;
    slider.min = answer.min_passes;
    slider.max = answer.max_passes;
    slider.value = want.passes ?? answer.max_passes;
    passes.textContent = want.passes === null ? 'exact' : `${want.passes} of ${answer.max_passes} passes`;
    slider.setAttribute('aria-valuetext', passes.textContent);
    back.disabled = want.removed.length === 0;
    legend.innerHTML = answer.legend; // of the package's own template, which escapes
    const waits = since === null ? 0 : (Date.now() - since) / 1000;
    const notice = waits < SLOW ? '' : `the kernel computes, ${waits.toFixed()} s; where it was started anew, run the cell again`;
    state.textContent = answer.error || notice || hinted;
    state.classList.toggle('error', Boolean(answer.error));
    box.setAttribute('aria-busy', pending);
  }

  function choose(i) {
    const word = model.get('answer').words[i];
    hinted = word.fixed ? `${word.text} stays: it is not content, or the explained number is read there` : '';
    move(i);
    if (word.fixed) draw();
    else toggle(i);
  }

  function move(i) {
    at = Math.max(0, Math.min(sentence.children.length - 1, i));
    [...sentence.children].forEach((spot, k) => (spot.firstChild.tabIndex = k === at ? 0 : -1));
    sentence.children[at].firstChild.focus();
  }

  function receive() {
    const answer = model.get('answer');
    if (since !== null && answer.request === `${own}-${sent}`) {
      since = null;
      const ended = answer.done || answer.error;
      if (ended && same(wanted, model.get('query'))) wanted = null;
      else send();
    }
    draw();
  }

  sentence.addEventListener('keydown', (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    event.stopPropagation(); // of the notebook's own keys
    move(at + step);
  });
  box.addEventListener('keydown', (event) => {
    if (['Enter', ' '].includes(event.key) || event.key.startsWith('Arrow')) event.stopPropagation();
  });
  slider.addEventListener('input', () => {
    const value = Number(slider.value);
    ask({ passes: value >= model.get('answer').max_passes ? null : value });
  });
  back.addEventListener('click', () => ask({ removed: [] }));
  model.on('change:answer', receive);
  // the static view, which a notebook without its kernel shows
  const static_view = document.querySelector(`[data-lrp-static="${model.get('static_id')}"]`);
  const around = static_view?.closest('.jp-OutputArea-child') ?? static_view;
  if (around) around.style.display = 'none';
  const clock = setInterval(() => since !== null && draw(), 1000);
  draw();
  return () => {
    clearInterval(clock);
    if (around) around.style.display = '';
    model.off('change:answer', receive);
  };
}

export default { render };
