"""A headless Chromium driven over its debugging pipe, with the standard library alone.

python tests/chromium.py   says which browser the tests take; 1 if there is none
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile

NAMES = (
    'chromium',
    'chromium-browser',
    'google-chrome',
    'google-chrome-stable',
    'chrome',
)
MISSING = 'needs Chromium: apt-get install chromium, or name one in CHROMIUM'
# nothing is looked up by the browser itself; it need not run as another user
FLAGS = (
    '--headless=new',
    '--no-sandbox',
    '--disable-gpu',
    '--disable-dev-shm-usage',
    '--no-first-run',
    '--disable-background-networking',
    '--disable-component-update',
    '--disable-sync',
    '--disable-quic',
)
KEYS = {
    'Tab': 9,
    'Enter': 13,
    ' ': 32,
    'End': 35,
    'Home': 36,
    'ArrowLeft': 37,
    'ArrowUp': 38,
    'ArrowRight': 39,
    'ArrowDown': 40,
}


def find():
    "The path of a browser, or None."
    for name in (os.environ.get('CHROMIUM', ''), *NAMES):
        path = shutil.which(name)
        if path:
            return path
    return None


def may_be_left_out():
    """Whether what needs a browser is passed over: there is none. Where CI is
    set it is not, and fails.
    """
    return find() is None and not os.environ.get('CI')


def _on_3_and_4(to_read, to_write):
    "A function for the child: the browser reads commands from 3, writes to 4."

    def pipes():
        a = os.dup(to_read)
        b = os.dup(to_write)
        os.dup2(a, 3)
        os.dup2(b, 4)
        os.set_inheritable(3, True)
        os.set_inheritable(4, True)

    return pipes


def _command(folder, width, height):
    browser = find()
    if browser is None:
        raise FileNotFoundError(MISSING)
    return [
        browser,
        *FLAGS,
        '--remote-debugging-pipe',
        f'--user-data-dir={folder}',
        f'--window-size={width},{height}',
        'about:blank',
    ]


class Chromium:
    "One page of one browser. `errors` collects what the page complained of."

    def __init__(self, width=1000, height=900):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.n = 0
        self.errors = []
        self.offline = []
        to_read, self.out = os.pipe()
        self.into, to_write = os.pipe()

        self.process = subprocess.Popen(
            _command(self.folder.name, width, height),
            preexec_fn=_on_3_and_4(to_read, to_write),
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self.read = os.fdopen(self.into, 'rb')
        self.session = None
        targets = self('Target.getTargets')['targetInfos']
        page = next(t for t in targets if t['type'] == 'page')
        attached = self(
            'Target.attachToTarget', targetId=page['targetId'], flatten=True
        )
        self.session = attached['sessionId']
        for domain in ('Page', 'Runtime', 'Log', 'Network'):
            self(f'{domain}.enable')

    def _message(self):
        out = bytearray()
        while (c := self.read.read(1)) not in (b'\0', b''):
            out += c
        if not out:
            raise RuntimeError('the browser has gone')
        message = json.loads(out)
        self._heed(message.get('method'), message.get('params', {}))
        return message

    def _heed(self, event, params):
        "Keep what the page complains of, and what it fetches."
        if event == 'Runtime.exceptionThrown':
            details = params['exceptionDetails']
            said = details.get('exception', {}).get('description')
            self.errors.append(said or details['text'])
        if event == 'Log.entryAdded' and params['entry']['level'] == 'error':
            self.errors.append(params['entry']['text'])
        if event == 'Network.requestWillBeSent':
            url = params['request']['url']
            if not url.startswith(('file:', 'data:', 'about:')):
                self.offline.append(url)

    def __call__(self, method, **params):
        self.n += 1
        m = dict(id=self.n, method=method, params=params)
        if self.session:
            m['sessionId'] = self.session
        os.write(self.out, json.dumps(m).encode() + b'\0')
        while (answer := self._message()).get('id') != self.n:
            pass
        if 'error' in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer['result']

    def open(self, url):
        self('Page.navigate', url=url)
        while self._message().get('method') != 'Page.loadEventFired':
            pass

    def js(self, code):
        r = self('Runtime.evaluate', expression=code, returnByValue=True)
        if 'exceptionDetails' in r:
            thrown = r['exceptionDetails'].get('exception', {})
            raise RuntimeError(thrown.get('description'))
        return r['result'].get('value')

    def key(self, name, times=1):
        for _ in range(times):
            for kind in ('rawKeyDown', 'keyUp'):
                self(
                    'Input.dispatchKeyEvent',
                    type=kind,
                    key=name,
                    code='Space' if name == ' ' else name,
                    windowsVirtualKeyCode=KEYS[name],
                )
            if name == ' ':
                self('Input.dispatchKeyEvent', type='char', text=' ')

    def click(self, selector):
        box = self.js(
            "(() => { const e ="
            f" document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center'}); const b ="
            " e.getBoundingClientRect(); return [b.x + b.width/2, b.y +"
            " b.height/2] })()"
        )
        self('Input.dispatchMouseEvent', type='mouseMoved', x=box[0], y=box[1])
        for kind in ('mousePressed', 'mouseReleased'):
            self(
                'Input.dispatchMouseEvent',
                type=kind,
                x=box[0],
                y=box[1],
                button='left',
                clickCount=1,
            )

    def width(self, w, h=900):
        self(
            'Emulation.setDeviceMetricsOverride',
            width=w,
            height=h,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefers(self, scheme):
        "light or dark, as a reader's system does; print: on paper."
        feature = dict(
            name='prefers-color-scheme', value=scheme.replace('print', 'dark')
        )
        media = 'print' if scheme == 'print' else ''
        self('Emulation.setEmulatedMedia', media=media, features=[feature])

    def picture(self, path):
        shot = self('Page.captureScreenshot', format='png', captureBeyondViewport=True)
        with open(path, 'wb') as f:
            f.write(base64.b64decode(shot['data']))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.read.close()
        os.close(self.out)
        self.folder.cleanup()


if __name__ == '__main__':
    browser = find()
    print(browser or MISSING)
    sys.exit(browser is None)
