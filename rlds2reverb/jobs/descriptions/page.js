'use strict';
// The episode browser: shows the curves and the frames of one episode. All it
// shows is in the JSON of the page. An element with `data-path` shows the value
// at that path in the JSON.
(function() {
  const data = JSON.parse(document.getElementById('description').textContent);
  const select = document.getElementById('episode');
  if (!select) return;
  const slider = document.getElementById('step');
  const summary = document.getElementById('episode-summary');
  const frames = document.getElementById('frames');
  const curves = document.getElementById('curves');
  let current = 0;

  // As Python writes it with `.4g`; integers whole.
  function format(value) {
    if (value === null || value === undefined) return '-';
    if (Number.isInteger(value) && Math.abs(value) < 1e6) {
      return value.toLocaleString('en-US');
    }
    const [digits, power] = value.toExponential(3).split('e');
    const exponent = Number(power);
    const strip = text => text.replace(/\.?0+$/, '');
    if (exponent < -4 || exponent >= 4) {
      const size = String(Math.abs(exponent)).padStart(2, '0');
      return strip(digits) + 'e' + (exponent < 0 ? '-' : '+') + size;
    }
    return strip(value.toFixed(3 - exponent));
  }

  function element(name, attributes, ...children) {
    const made = name.startsWith('svg:') ?
        document.createElementNS('http://www.w3.org/2000/svg', name.slice(4)) :
        document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  }

  function shown(path) {
    const value = path.reduce((part, key) => part[key], data);
    return element('span', {'data-path': JSON.stringify(path)}, format(value));
  }

  function colour(index, count) {
    return `hsl(${Math.round(210 + 300 * index / count) % 360} 65% 52%)`;
  }

  function drawCurves(episode) {
    curves.replaceChildren();
    const last = Math.max(episode.steps[episode.steps.length - 1] || 0, 1);
    for (const [field, columns] of Object.entries(episode.curves)) {
      const values = columns.flat().filter(value => value !== null);
      if (!values.length) continue;
      let low = values.reduce((a, b) => Math.min(a, b));
      let high = values.reduce((a, b) => Math.max(a, b));
      const caption = `${field}: ${format(low)} to ${format(high)}`;
      if (low === high) { low -= 1; high += 1; }
      const svg = element('svg:svg', {
        viewBox: '0 0 600 120', preserveAspectRatio: 'none', role: 'img',
        'aria-label': caption,
      });
      columns.forEach((column, index) => {
        const points = [];
        column.forEach((value, row) => {
          if (value === null) return;
          const x = 600 * episode.steps[row] / last;
          const y = 115 - 110 * (value - low) / (high - low);
          points.push(`${x.toFixed(1)},${y.toFixed(1)}`);
        });
        svg.append(element('svg:polyline', {
          points: points.join(' '), stroke: colour(index, columns.length),
        }));
      });
      svg.append(element('svg:line', {class: 'cursor', y1: 0, y2: 120}));
      curves.append(element('figure', {class: 'curve', 'data-field': field},
          element('figcaption', {}, caption), svg,
          element('div', {class: 'values quiet'})));
    }
  }

  function showStep() {
    const episode = data.episodes[current];
    const row = Number(slider.value);
    const step = episode.steps[row];
    const last = Math.max(episode.steps[episode.steps.length - 1] || 0, 1);
    document.getElementById('step-number').replaceChildren(
        'step ', step === undefined ?
            '-' : shown(['episodes', current, 'steps', row]));
    for (const figure of curves.children) {
      const field = figure.dataset.field;
      const line = figure.querySelector('.cursor');
      line.setAttribute('x1', 600 * step / last);
      line.setAttribute('x2', 600 * step / last);
      const values = figure.querySelector('.values');
      values.replaceChildren();
      episode.curves[field].slice(0, 12).forEach((column, index) => {
        values.append(shown(['episodes', current, 'curves', field, index, row]),
            ' ');
      });
      if (episode.curves[field].length > 12) values.append('…');
    }
    // The last frame that is not after the step.
    let frame = 0;
    episode.frame_steps.forEach((at, index) => {
      if (at <= step) frame = index;
    });
    frames.replaceChildren();
    for (const [field, images] of Object.entries(episode.frames)) {
      if (!images.length) continue;
      frames.append(element('figure', {},
          element('img', {
            src: 'data:image/jpeg;base64,' + images[frame],
            alt: `${field} of step ${episode.frame_steps[frame]}`,
          }),
          element('figcaption', {}, `${field}, step `,
              shown(['episodes', current, 'frame_steps', frame]))));
    }
  }

  function showEpisode(index) {
    current = index;
    select.value = String(index);
    const episode = data.episodes[index];
    summary.replaceChildren(
        'Episode ', shown(['episodes', index, 'episode']), ': ',
        shown(['episodes', index, 'num_steps']), ' steps, return ',
        shown(['episodes', index, 'return']),
        episode.is_terminal ? ', terminal' : ', truncated');
    slider.max = String(Math.max(episode.steps.length - 1, 0));
    slider.value = '0';
    drawCurves(episode);
    showStep();
  }

  select.addEventListener('change', () => showEpisode(Number(select.value)));
  slider.addEventListener('input', showStep);
  document.getElementById('previous').addEventListener('click', () => {
    showEpisode((current + data.episodes.length - 1) % data.episodes.length);
  });
  document.getElementById('next').addEventListener('click', () => {
    showEpisode((current + 1) % data.episodes.length);
  });
  showEpisode(0);
})();
