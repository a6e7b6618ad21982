"""The widget in JupyterLab itself, driven in Chromium: a minute, so no test of CI.

python tests/lab.py [FOLDER]   says what it saw; pictures go to FOLDER

It starts a server of its own, with a notebook of one cell in a temporary folder.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import chromium
import nbformat

TEXT = 'A gripping, funny film that never once talks down to us.'
CELL = f"""from lrp_loo import load_demo
from lrp_loo.reports.widget import explore
w = explore(*load_demo('sst2'), {TEXT!r}, passes=3)
w"""
NOTEBOOK = "!!document.querySelector('.jp-Notebook .jp-Cell')"
WAIT = 60  # seconds for what a busy machine is slow at


class Lab:
    "A server, and a browser that has its notebook open."

    def __init__(self, folder):
        nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
        nb.metadata.kernelspec = dict(name='python3', display_name='Python 3')
        nbformat.write(nb, folder / 'one.ipynb')
        # no question about news in front of the notebook
        quiet = folder / 'settings' / '@jupyterlab' / 'apputils-extension'
        quiet.mkdir(parents=True)
        (quiet / 'notification.jupyterlab-settings').write_text(
            '{"fetchNews": "false", "checkForUpdates": false}'
        )
        with socket.socket() as s:
            s.bind(('127.0.0.1', 0))
            self.port = s.getsockname()[1]
        self.server = subprocess.Popen(
            [
                *(sys.executable, '-m', 'jupyterlab', '--no-browser', '--allow-root'),
                f'--ServerApp.port={self.port}',
                '--IdentityProvider.token=',
                f'--ServerApp.root_dir={folder}',
                '--LabApp.expose_app_in_browser=True',
            ],
            env=os.environ
            | dict(
                JUPYTER_CONFIG_DIR=str(folder / 'config'),
                JUPYTERLAB_SETTINGS_DIR=str(folder / 'settings'),
            ),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.page = chromium.Chromium(1280, 900)

    def url(self, path):
        return f'http://127.0.0.1:{self.port}/{path}'

    def until(self, what, said):
        "Waits for a JavaScript expression to be true; what it is then."
        start = time.time()
        while time.time() - start < WAIT:
            if found := self.page.js(what):
                return found
            time.sleep(0.2)
        raise TimeoutError(f'{said}: not in {WAIT} s')

    def opened(self):
        start = time.time()
        while time.time() - start < WAIT:
            try:
                urllib.request.urlopen(self.url('api')).read()
                break
            except OSError:
                time.sleep(0.5)
        self.page.open(self.url('lab/tree/one.ipynb?reset'))
        self.until(NOTEBOOK, 'the notebook')
        self.page.click('.jp-Notebook .jp-Cell')
        self.until('!!window.jupyterapp.shell.currentWidget', 'its focus')

    def run(self, command):
        self.page.js(f'window.jupyterapp.commands.execute({command!r}), 0')

    def look(self, css, name='textContent'):
        return self.page.js(f'document.querySelector({css!r})?.{name}')

    def settled(self):
        self.until(
            "document.querySelector('.lrp-live')?.getAttribute('aria-busy') == 'false'",
            'an answer',
        )

    def close(self):
        self.page.__exit__()
        self.server.terminate()
        self.server.wait()


def main(pictures=None):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        lab = Lab(Path(folder))
        try:
            drive(lab, pictures)
        finally:
            lab.close()


def say(lab, what):
    words = ('.spent', '.number', '.changed', '.budget output', '.state')
    seen = ' | '.join(str(lab.look(f'.lrp-live {css}')) for css in words)
    print(f'{what}: {seen}', flush=True)


def drive(lab, pictures):
    "What a reader does."

    def picture(name):
        if pictures:
            Path(pictures).mkdir(parents=True, exist_ok=True)
            lab.page.picture(Path(pictures) / f'{name}.png')

    lab.opened()
    lab.until(
        "!!window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel",
        'kernel',
    )
    lab.run('runmenu:run-all')
    lab.until("!!document.querySelector('.lrp-live button.t')", 'the widget')
    lab.settled()
    say(lab, 'opened on one gradient pass')
    picture('lab_one_pass')
    # the slider to its end, by the keyboard
    lab.page.js("document.querySelector('.lrp-live input').focus()")
    lab.page.key('End')
    lab.settled()
    say(lab, 'moved to exact')
    assert 'exact' in lab.look('.lrp-live .spent')
    at = lab.page.js(
        "[...document.querySelectorAll('.lrp-live button.t')]"
        ".findIndex(b => b.textContent == 'funny')"
    )
    lab.page.click(f'.lrp-live .words span:nth-child({at + 1}) button')
    lab.settled()
    say(lab, 'funny removed')
    assert 'without funny' in lab.look('.lrp-live .number')
    picture('lab_without')
    lab.page.js(
        "window.jupyterapp.commands.execute('apputils:change-theme',"
        " {theme: 'JupyterLab Dark'}), 0"
    )
    lab.until("document.body.dataset.jpThemeLight == 'false'", 'the dark theme')
    time.sleep(1)
    picture('lab_dark')
    lab.run('docmanager:save')
    time.sleep(2)
    lab.run('kernelmenu:shutdown')
    time.sleep(2)
    lab.page.open(lab.url('lab/tree/one.ipynb?reset'))
    lab.until(NOTEBOOK, 'the notebook')
    time.sleep(8)
    print('opened again:', repr(lab.look('.jp-OutputArea-output', 'innerText')))
    picture('lab_again')
    assert not lab.page.errors, lab.page.errors


if __name__ == '__main__':
    main(*sys.argv[1:2])
