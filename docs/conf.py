"""How Sphinx makes the manual; see scripts/manual.sh."""

import ast
import os
import re
import textwrap

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
# The tutorials import trainers from examples/.
os.environ['PYTHONPATH'] = os.path.dirname(
    os.path.dirname(os.path.abspath(__file__))
)

project = 'rlds2reverb'
author = 'The rlds2reverb authors'
extensions = [
    'myst_nb',
    'sphinx.ext.autodoc',
    'sphinx.ext.napoleon',
    'sphinx_copybutton',
]
source_suffix = {'.md': 'myst-nb'}
exclude_patterns = ['BUILD', '_build']

html_theme = 'sphinx_book_theme'
html_title = 'rlds2reverb'
html_theme_options = {
    'show_toc_level': 2,
    'home_page_in_toc': True,
    'navbar_persistent': [],  # The sidebar has a search field.
}
html_static_path = ['static']
html_css_files = ['narrow.css']

# Links to headings, as GitHub makes them.
myst_heading_anchors = 3

# The tutorials are run at every build, so what they show is what the code
# gives. A cell that fails is a warning, which scripts/manual.sh takes as an
# error.
nb_execution_mode = 'force'
nb_execution_timeout = 600  # Seconds, of a cell.
nb_execution_in_temp = True
nb_execution_show_tb = True
nb_merge_streams = True
# Without running a tutorial, nobody says in which language its cells are.
suppress_warnings = ['myst-nb.lexer']
# What libraries have to say of themselves.
nb_output_stderr = 'remove'

autodoc_member_order = 'bysource'
# The arguments of a class are in the docstring of `__init__`.
autoclass_content = 'both'
autodoc_typehints = 'signature'
autodoc_typehints_format = 'short'
python_maximum_signature_line_length = 80
autodoc_default_options = {'members': True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False
default_role = 'py:obj'

_SECTION = re.compile(r'^(Args|Attributes|Raises|Returns|Yields):$')
_CODE = re.compile(r'(?<!`)`([^`]+)`(?!`)(\w?)')
# A default that is no Python: a member of an enum, a function, a factory.
_DEFAULT = re.compile(r'<(?:\w+\.\w+: |built-in function )([^<>]*)>')
# A name of Python, which gets a link where it is one of ours.
_NAME = re.compile(r'[A-Za-z_][\w.]*(\(\))?')


def _language(block: list[str]) -> str:
  try:
    ast.parse(textwrap.dedent('\n'.join(block)))
  except SyntaxError:
    return 'text'
  return 'python'


def _mark_code(lines: list[str]) -> list[str]:
  """Marks the indented blocks of a docstring as code.

  A block is indented by four more than the text around it, as in Markdown. What
  continues an argument of `Args:` is not one: no empty line is above it.
  """
  marked = []
  base = 0
  index = 0
  while index < len(lines):
    line = lines[index]
    indent = len(line) - len(line.lstrip())
    above_is_empty = index == 0 or not lines[index - 1].strip()
    if line.strip() and above_is_empty and indent >= base + 4:
      end = index
      while end < len(lines) and (
          not lines[end].strip()
          or len(lines[end]) - len(lines[end].lstrip()) >= base + 4
      ):
        end += 1
      block = lines[index:end]
      marked += [' ' * base + f'.. code-block:: {_language(block)}', '']
      marked += block
      if block[-1].strip():
        marked.append('')
      index = end
      continue
    if line.strip():
      base = 0 if indent == 0 else base
      if _SECTION.match(line.strip()):
        base = indent + 4
    marked.append(line)
    index += 1
  return marked


def _write_code(match: 're.Match[str]') -> str:
  """Writes what is in backticks in reStructuredText."""
  code, following = match.groups()
  role = f'`{code}`' if _NAME.fullmatch(code) else f'``{code}``'
  # A letter may follow: `Dataset`s.
  return role + ('\\ ' if following else '') + following


def _process_docstring(app, what, name, obj, options, lines):
  del app, what, name, obj, options
  text = _CODE.sub(_write_code, '\n'.join(lines))
  lines[:] = _mark_code(text.split('\n'))


def _process_signature(app, what, name, obj, options, signature, returned):
  """Writes defaults as Python, without which Sphinx reads no signature."""
  del app, what, name, obj, options
  if signature is not None:
    signature = _DEFAULT.sub(r'\1', signature).replace('<factory>', '...')
  return signature, returned


def _skip_member(app, what, name, obj, skip, options):
  """Leaves out what a NamedTuple says of a field: `Attributes:` says more."""
  del app, what, options
  doc = getattr(obj, '__doc__', None) or ''
  if doc.startswith('Alias for field number') or name in ('count', 'index'):
    return True
  return skip


def setup(app):
  # Before napoleon, whose priority is 500.
  app.connect('autodoc-process-docstring', _process_docstring, priority=400)
  app.connect('autodoc-process-signature', _process_signature)
  app.connect('autodoc-skip-member', _skip_member)
