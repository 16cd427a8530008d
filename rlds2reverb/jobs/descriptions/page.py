"""Descriptions as one HTML page that needs nothing else.

`page.html` is the template of the page, and `page.js` draws the plots in it
with Vega-Lite, which the page holds whole. Jinja2 and vl-convert-python, which
brings Vega-Lite, are imported when a page is made.
"""

import dataclasses
import importlib
import json
import os
from typing import Any, List

from rlds2reverb.episodes import checks
from rlds2reverb.jobs.descriptions import description as description_lib
from rlds2reverb.jobs.descriptions import text

_FOLDER = os.path.dirname(__file__)


def import_libraries() -> List[Any]:
  """Returns the packages `jinja2`, `markupsafe` and `vl_convert`.

  Raises:
    ModuleNotFoundError: if one is not installed.
  """
  try:
    return [
        importlib.import_module(name)
        for name in ('jinja2', 'markupsafe', 'vl_convert')
    ]
  except ModuleNotFoundError as e:
    raise ModuleNotFoundError(
        f'A page of a description needs {e.name}, which is not installed.'
        " Run `pip install '.[page]'` in a clone of rlds2reverb.",
        name=e.name,
    ) from e


def to_html(*descriptions: description_lib.Description) -> str:
  """Returns the page of a description, or of several side by side.

  Raises:
    ModuleNotFoundError: if a package that makes pages is not installed.
  """
  jinja2, markupsafe, vl_convert = import_libraries()
  environment = jinja2.Environment(
      loader=jinja2.FileSystemLoader(_FOLDER),
      autoescape=True,
      undefined=jinja2.StrictUndefined,
      trim_blocks=True,
      lstrip_blocks=True,
  )
  environment.filters.update(
      counted=checks.counted,
      number=text.number,
      shape=text.shape,
      size=text.size,
  )
  environment.globals['how_many'] = text.how_many
  plain = json.dumps(
      [dataclasses.asdict(one) for one in descriptions], allow_nan=False
  )
  # The text of an element `script` must not end it.
  library = vl_convert.javascript_bundle().replace('</script', r'<\/script')
  return environment.get_template('page.html').render(
      descriptions=descriptions,
      data=markupsafe.Markup(plain.replace('<', r'\u003c')),
      library=markupsafe.Markup(library),
      script=markupsafe.Markup(_read('page.js')),
      style=markupsafe.Markup(_read('page.css')),
  )


def _read(name: str) -> str:
  with open(os.path.join(_FOLDER, name), encoding='utf-8') as f:
    return f.read()
