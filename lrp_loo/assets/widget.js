// What the browser does of `reports.widget`: it draws what the kernel says
// (`shown`) and asks for what the reader wants (`asked`), one request at a time.
const make = (kind, name, parent, more = {}) => {
  const node = Object.assign(document.createElement(kind), { className: name }, more);
  parent.append(node);
  return node;
};
const same = (a, b) => a.passes === b.passes && `${a.removed}` === `${b.removed}`;
const SLOW = 2; // seconds without an answer until that is said

function render({ model, el }) {
  const box = make('div', 'lrp-loo lrp-live', el);
  const spent = make('b', 'spent', make('div', '', box));
  const asked = make('small', 'asked', spent.parentNode);
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
    const { removed, wish: budget } = model.get('shown');
    return wanted ?? { removed, passes: budget };
  };

  function send() {
    since = Date.now();
    sent += 1;
    model.set('asked', { ...wanted, request: `${own}-${sent}` });
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
    const title = removed.includes(i) && !word.said.endsWith('removed') ? word.text : word.said;
    button.title = word.fixed ? `${title} (stays)` : title;
    button.className = ['t', word.sign, word.apart && 'apart', word.pale && 'pale'].filter(Boolean).join(' ');
    button.style.cssText = word.apart || removed.includes(i) ? '' : word.dye;
    button.setAttribute('aria-pressed', removed.includes(i));
    button.setAttribute('aria-label', button.title);
    button.setAttribute('aria-disabled', Boolean(word.fixed));
    button.tabIndex = i === at ? 0 : -1;
  }

  function draw() {
    const shown = model.get('shown');
    const want = wish();
    const pending = since !== null || wanted !== null;
    spent.textContent = shown.spent;
    asked.textContent = ` · ${shown.asked}`;
    while (sentence.children.length > shown.words.length) sentence.lastChild.remove();
    shown.words.forEach((word, i) => {
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
    number.textContent = [shown.without && `${shown.without}:`, shown.number].filter(Boolean).join(' ');
    if (shown.before) make('small', '', number, { textContent: shown.before });
    changed.textContent = shown.changed;
    slider.min = shown.least;
    slider.max = shown.most;
    slider.value = want.passes ?? shown.most;
    passes.textContent = want.passes === null ? 'exact' : `${want.passes} of ${shown.most} passes`;
    slider.setAttribute('aria-valuetext', passes.textContent);
    back.disabled = want.removed.length === 0;
    legend.innerHTML = shown.legend; // of the package's own template, which escapes
    const waits = since === null ? 0 : (Date.now() - since) / 1000;
    const said = waits < SLOW ? '' : `the kernel computes, ${waits.toFixed()} s; where it was started anew, run the cell again`;
    state.textContent = shown.error || said || hinted;
    state.classList.toggle('error', Boolean(shown.error));
    box.setAttribute('aria-busy', pending);
  }

  function choose(i) {
    const word = model.get('shown').words[i];
    hinted = word.fixed ? `${word.text} stays: it is not asked about, or the answer is read there` : '';
    move(i);
    if (word.fixed) draw();
    else toggle(i);
  }

  function move(i) {
    at = Math.max(0, Math.min(sentence.children.length - 1, i));
    [...sentence.children].forEach((spot, k) => (spot.firstChild.tabIndex = k === at ? 0 : -1));
    sentence.children[at].firstChild.focus();
  }

  function heard() {
    const shown = model.get('shown');
    if (since !== null && shown.request === `${own}-${sent}`) {
      since = null;
      const ended = shown.done || shown.error;
      if (ended && same(wanted, model.get('asked'))) wanted = null;
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
    ask({ passes: value >= model.get('shown').most ? null : value });
  });
  back.addEventListener('click', () => ask({ removed: [] }));
  model.on('change:shown', heard);
  // the static view, which a notebook without its kernel shows
  const still = document.querySelector(`[data-lrp-still="${model.get('still')}"]`);
  const around = still?.closest('.jp-OutputArea-child') ?? still;
  if (around) around.style.display = 'none';
  const clock = setInterval(() => since !== null && draw(), 1000);
  draw();
  return () => {
    clearInterval(clock);
    if (around) around.style.display = '';
    model.off('change:shown', heard);
  };
}

export default { render };
