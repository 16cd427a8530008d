"""Drives Debian's Chromium without a window, to test pages.

Chromium takes commands of its DevTools protocol from a pipe, and answers on
another one: file descriptors 3 and 4 of its process. So this needs no driver
and no network.
"""

import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from typing import Any, Dict, List, Optional

_COMMAND = ('chromium', 'chromium-browser')
_TIMEOUT_SECONDS = 60


def find_chromium() -> Optional[str]:
  """Returns the path of Chromium, or None where it is not installed."""
  return next(filter(None, map(shutil.which, _COMMAND)), None)


class Browser:
  """One page in a new Chromium; a context manager.

  Attributes:
    errors: what the page has written to the console as an error or a warning,
      and the exceptions that nothing has caught.
  """

  def __init__(self, width: int = 1000, height: int = 800):
    self.errors: List[str] = []
    self._size = (width, height)
    self._count = 0
    self._buffer = b''
    self._events: List[Dict[str, Any]] = []
    self._session: Optional[str] = None

  def __enter__(self):
    self._folder = tempfile.mkdtemp()
    theirs_in, self._out = os.pipe()
    self._in, theirs_out = os.pipe()

    def take_pipes():
      # The descriptors 3 and 4 may be among those that were just made.
      first, second = (
          fcntl.fcntl(one, fcntl.F_DUPFD, 5) for one in (theirs_in, theirs_out)
      )
      os.dup2(first, 3)
      os.dup2(second, 4)

    self._process = subprocess.Popen(
        [
            find_chromium(),
            '--headless',
            '--no-sandbox',
            '--disable-gpu',
            '--disable-background-networking',
            '--no-first-run',
            f'--user-data-dir={self._folder}',
            '--remote-debugging-pipe',
            'about:blank',
        ],
        preexec_fn=take_pipes,
        close_fds=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
      targets = self._send('Target.getTargets')['targetInfos']
      (page,) = [one for one in targets if one['type'] == 'page']
      self._session = self._send(
          'Target.attachToTarget', targetId=page['targetId'], flatten=True
      )['sessionId']
      for domain in ('Page', 'Runtime', 'Log', 'Network'):
        self._send(f'{domain}.enable')
      self.set_width(self._size[0])
    except BaseException:
      self.__exit__()
      raise
    return self

  def __exit__(self, *unused_error):
    self._process.terminate()
    try:
      self._process.wait(10)
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()
    os.close(self._in)
    os.close(self._out)
    shutil.rmtree(self._folder, ignore_errors=True)

  def open(self, path: str) -> None:
    """Opens a local file, and waits until it is loaded."""
    self._events.clear()
    self._send('Page.navigate', url=f'file://{path}')
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not any(
        one['method'] == 'Page.loadEventFired' for one in self._events
    ):
      self._receive(deadline)

  def run(self, script: str) -> Any:
    """Returns the value of a JavaScript expression in the page."""
    answer = self._send(
        'Runtime.evaluate', expression=script, returnByValue=True
    )
    if 'exceptionDetails' in answer:
      raise AssertionError(f'{script}: {answer["exceptionDetails"]}')
    return answer['result'].get('value')

  def click(self, selector: str) -> None:
    """Presses and releases the mouse in the middle of an element."""
    self.run(
        f'document.querySelector({selector!r}).scrollIntoView({{block:'
        ' "center"})'
    )
    box = self.run(
        f'(() => {{const r = document.querySelector({selector!r})'
        '.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height'
        ' / 2];})()'
    )
    for kind in ('mousePressed', 'mouseReleased'):
      self._send(
          'Input.dispatchMouseEvent',
          type=kind,
          x=box[0],
          y=box[1],
          button='left',
          clickCount=1,
      )

  def set_width(self, width: int) -> None:
    self._send(
        'Emulation.setDeviceMetricsOverride',
        width=width,
        height=self._size[1],
        deviceScaleFactor=1,
        mobile=width < 500,
    )

  def set_dark(self, is_dark: bool) -> None:
    value = 'dark' if is_dark else 'light'
    scheme = {'name': 'prefers-color-scheme', 'value': value}
    self._send('Emulation.setEmulatedMedia', features=[scheme])

  def requests(self) -> List[str]:
    """Returns the URLs that the page has asked for, but for `data:`."""
    urls = [
        one['params']['request']['url']
        for one in self._events
        if one['method'] == 'Network.requestWillBeSent'
    ]
    return [url for url in urls if not url.startswith('data:')]

  def _send(self, method: str, **params: Any) -> Dict[str, Any]:
    """Sends a command, and returns the answer."""
    self._count += 1
    message = {'id': self._count, 'method': method, 'params': params}
    if self._session:
      message['sessionId'] = self._session
    os.write(self._out, json.dumps(message).encode() + b'\0')
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while True:
      answer = self._receive(deadline)
      if answer.get('id') == self._count:
        if 'error' in answer:
          raise RuntimeError(f'{method}: {answer["error"]}')
        return answer['result']

  def _receive(self, deadline: float) -> Dict[str, Any]:
    """Returns the next message; events are kept."""
    while b'\0' not in self._buffer:
      left = deadline - time.monotonic()
      if not select.select([self._in], [], [], max(left, 0))[0]:
        raise TimeoutError('Chromium does not answer.')
      read = os.read(self._in, 1 << 20)
      if not read:
        raise ConnectionError('Chromium has ended.')
      self._buffer += read
    message, _, self._buffer = self._buffer.partition(b'\0')
    message = json.loads(message)
    if 'method' in message:
      self._events.append(message)
      params = message['params']
      if message['method'] == 'Runtime.exceptionThrown':
        self.errors.append(str(params['exceptionDetails']))
      elif message['method'] == 'Runtime.consoleAPICalled' and (
          params['type'] in ('error', 'warning', 'assert')
      ):
        self.errors.append(str(params['args']))
      elif message['method'] == 'Log.entryAdded':
        self.errors.append(str(params['entry']))
    return message
