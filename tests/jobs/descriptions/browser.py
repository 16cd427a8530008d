"""Opens pages in headless Chromium, and reads their content.

A script that is added to the page simulates a user, and then replaces the page
by its result. So neither a web driver nor a network is needed.
"""

import html as html_lib
import json
import re
import shutil
import subprocess
import tempfile
from typing import Any

_COMMAND = ('chromium', 'chromium-browser')
# Runs before the scripts of a page, and records their errors and warnings.
_BEFORE = """<script>
const errors = [];
addEventListener('error', event => errors.push(event.message));
addEventListener('unhandledrejection', event => errors.push(event.reason));
console.error = console.warn = (...args) => errors.push(args.join(' '));
</script>"""
# Runs after the scripts. The clock is virtual, so waiting takes no time.
_AFTER = """<script>
addEventListener('load', async () => {
  const wait = () => new Promise(done => setTimeout(done, 500));
  const all = (selector, root = document) =>
      Array.from(root.querySelectorAll(selector));
  const texts = (...where) => all(...where).map(one => one.textContent);
  const click = selector => all(selector)[0].dispatchEvent(
      new MouseEvent('click', {bubbles: true, cancelable: true}));
  await wait();
  let found = null;
  try {
    found = await (async () => {%s})();
  } catch (error) {
    errors.push(error);
  }
  const requests = performance.getEntriesByType('resource').map(
      one => one.name).filter(name => !name.startsWith('data:'));
  document.documentElement.textContent = JSON.stringify(
      {found, errors: errors.map(String), requests});
});
</script>"""


def find_chromium() -> str | None:
  """Returns the path of Chromium, or None if it is not installed."""
  return next(filter(None, map(shutil.which, _COMMAND)), None)


def run(
    html: str, script: str, width: int = 1280, is_dark: bool = False
) -> Any:
  """Runs a script in a page; returns its result. Any error of the page fails.

  Args:
    html: the page.
    script: the body of an asynchronous function of JavaScript, which may use
      `await wait()`, `click`, `all` and `texts`.
    width: the width of the window, at least 500.
    is_dark: whether the user prefers dark colors.
  """
  html = html.replace('<head>', f'<head>{_BEFORE}', 1)
  # The libraries of a page contain such end tags, too.
  html = f'{html.rpartition("</body>")[0]}{_AFTER % script}</body></html>'
  with tempfile.TemporaryDirectory() as folder:
    with open(f'{folder}/page.html', 'w', encoding='utf-8') as f:
      f.write(html)
    done = subprocess.run(
        [
            find_chromium(),
            '--headless',
            '--no-sandbox',
            '--disable-gpu',
            '--disable-background-networking',
            '--no-first-run',
            f'--user-data-dir={folder}/user',
            f'--window-size={width},900',
            f'--blink-settings=preferredColorScheme={int(not is_dark)}',
            '--virtual-time-budget=600000',
            '--dump-dom',
            f'file://{folder}/page.html',
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=120,
        check=True,
    )
  (text,) = re.findall(r'<html[^>]*>(\{.*\})</html>', done.stdout)
  answer = json.loads(html_lib.unescape(text))
  assert not answer['errors'] and not answer['requests'], answer
  return answer['found']
