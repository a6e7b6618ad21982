"""A headless Chromium driven over its debugging pipe, with the standard library alone."""

import base64
import json
import os
import shutil
import subprocess
import tempfile

NAMES = (
    'chromium',
    'chromium-browser',
    'google-chrome',
    'google-chrome-stable',
    'chrome',
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
    return next(
        (
            p
            for p in map(shutil.which, (os.environ.get('CHROMIUM', ''), *NAMES))
            if p
        ),
        None,
    )


class Chromium:
    "One page of one browser. `errors` collects what the page complained of."

    def __init__(self, width=1000, height=900):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.n = 0
        self.errors = []
        self.offline = []
        to_read, self.out = os.pipe()
        self.into, to_write = os.pipe()

        def pipes():
            "The browser reads commands from 3 and writes answers to 4."
            a = os.dup(to_read)
            b = os.dup(to_write)
            os.dup2(a, 3)
            os.dup2(b, 4)
            os.set_inheritable(3, True)
            os.set_inheritable(4, True)

        words = [
            find(),
            '--headless=new',
            '--no-sandbox',
            '--disable-gpu',
            '--disable-dev-shm-usage',
            '--no-first-run',
            '--remote-debugging-pipe',
            f'--user-data-dir={self.folder.name}',
            f'--window-size={width},{height}',
            'about:blank',
        ]
        self.process = subprocess.Popen(
            words,
            preexec_fn=pipes,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self.read = os.fdopen(self.into, 'rb')
        self.session = None
        target = next(
            t
            for t in self('Target.getTargets')['targetInfos']
            if t['type'] == 'page'
        )['targetId']
        self.session = self(
            'Target.attachToTarget', targetId=target, flatten=True
        )['sessionId']
        for domain in ('Page', 'Runtime', 'Log', 'Network'):
            self(f'{domain}.enable')

    def _message(self):
        out = bytearray()
        while (c := self.read.read(1)) not in (b'\0', b''):
            out += c
        if not out:
            raise RuntimeError('the browser has gone')
        m = json.loads(out)
        p = m.get('params', {})
        if m.get('method') == 'Runtime.exceptionThrown':
            self.errors.append(
                p['exceptionDetails'].get('exception', {}).get('description')
                or p['exceptionDetails']['text']
            )
        if (
            m.get('method') == 'Log.entryAdded'
            and p['entry']['level'] == 'error'
        ):
            self.errors.append(p['entry']['text'])
        if m.get('method') == 'Network.requestWillBeSent' and not p['request'][
            'url'
        ].startswith(('file:', 'data:', 'about:')):
            self.offline.append(p['request']['url'])
        return m

    def __call__(self, method, **params):
        self.n += 1
        m = dict(id=self.n, method=method, params=params) | (
            {'sessionId': self.session} if self.session else {}
        )
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
            raise RuntimeError(
                r['exceptionDetails'].get('exception', {}).get('description')
            )
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

    def picture(self, path):
        with open(path, 'wb') as f:
            f.write(
                base64.b64decode(
                    self(
                        'Page.captureScreenshot',
                        format='png',
                        captureBeyondViewport=True,
                    )['data']
                )
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.read.close()
        os.close(self.out)
        self.folder.cleanup()
