'use strict';
// Draws the plots, and shows an episode at a step: that of the address, which
// ends with `#description/episode/step`. All it shows is in the JSON of the page.
(function() {
  const all = JSON.parse(document.getElementById('descriptions').textContent);
  const get = id => document.getElementById(id);
  const several = all.length > 1;
  const colours = all.map((_, which) => `var(--colour${which % 3})`);
  const sources = all.map((one, which) =>
      all.some((other, at) => at !== which && other.source === one.source) ?
          `${which + 1}. ${one.source}` : one.source);
  const format = value => value === null || value === undefined ? '-' :
      value.toLocaleString('en-US', {maximumSignificantDigits: 4});

  const counted = (count, one) => `${count} ${one}${count === 1 ? '' : 's'}`;

  function make(name, attributes, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  }

  const text = {
    labelColor: 'var(--text)', titleColor: 'var(--quiet)', titleFontWeight: 400,
    labelFontSize: 11, titleFontSize: 11,
  };
  const config = {
    background: 'transparent',
    font: 'system-ui, sans-serif',
    view: {stroke: null},
    axis: {
      ...text, gridColor: 'var(--grid)', domainColor: 'var(--grid)',
      tickColor: 'var(--grid)', labelOverlap: 'greedy', labelLimit: 110,
    },
    legend: {...text, title: null, orient: 'bottom', labelLimit: 300},
    bar: {binSpacing: 0},
  };

  // Draws into a new figure; returns a promise of what draws it.
  function draw(parent, caption, spec) {
    const plot = make('div', {class: 'plot'});
    const figure = make('figure', {}, make('figcaption', {}, caption), plot);
    parent.append(figure);
    return vegaEmbed(plot, {
      width: 'container', height: 130, config,
      autosize: {type: 'fit-x', contains: 'padding'}, ...spec,
    }, {actions: false, renderer: 'svg'}).then(made => {
      made.view.addEventListener('click', (event, item) => {
        const place = item && item.datum && item.datum.place;
        if (place) location.hash = place;
      });
      return {view: made.view, figure};
    });
  }

  // The address of an episode, if the page shows it.
  function placeOf(which, at) {
    const isShown = at && all[which].episodes.some(one => one.episode === at[0]);
    return isShown ? `#${which}/${at[0]}/${at[1]}` : null;
  }

  const hint = at => at ? `episode ${at[0]}, step ${at[1]}` : 'none on this page';
  const colourOf = several ? {
    field: 'source', type: 'nominal',
    scale: {domain: sources, range: colours}, legend: null,
  } : {value: colours[0]};

  // The numbers of a histogram that an episode shows, by its steps.
  function numbersOf(episode, name) {
    if (name === 'lengths') return [episode.num_transitions];
    if (name === 'returns') return [episode.return];
    if (name in episode.curves) return episode.curves[name][0];
    const [, field, column] = name.match(/^(.*)\[(\d+)\]$/);
    return episode.curves[field][column];
  }

  // The episode that is shown, and its step, with a number in a range.
  function findPlace(which, name, low, high) {
    const slack = 1e-6 * (Math.abs(low) + Math.abs(high));  // for rounding
    for (const episode of all[which].episodes) {
      const row = numbersOf(episode, name).findIndex(value =>
          value !== null && value >= low - slack && value <= high + slack);
      if (row >= 0) return [episode.episode, episode.steps[row] || 0];
    }
    return null;
  }

  // The ticks of an axis of whole numbers from 0.
  const whole = most => most <= 5 ?
      {format: 'd', values: [...Array(most + 1).keys()]} :
      {format: '~s', tickCount: 5};

  function drawHistogram(parent, name) {
    const found = all.map(one => one.histograms[name]);
    const bars = [];
    found.forEach((one, which) => (one ? one.counts : []).forEach((count, bar) => {
      const at = count ?
          findPlace(which, name, one.edges[bar], one.edges[bar + 1]) : null;
      bars.push({
        source: sources[which], count, share: count / one.of,
        low: one.edges[bar], high: one.edges[bar + 1],
        label: one.labels ? one.labels[bar] : String((one.values || [])[bar]),
        order: (one.values || [])[bar],
        place: placeOf(which, at), example: hint(at),
      });
    }));
    const isDiscrete = found.every(one => !one || one.values);
    // Every bar is to be seen: one of what is constant is as wide as others are,
    // and those of a range much smaller than the axis have a pixel or so.
    const span = Math.max(...bars.map(bar => bar.high)) -
        Math.min(...bars.map(bar => bar.low));
    const width = Math.max(span / 64, ...bars.map(bar => bar.high - bar.low));
    for (const bar of bars) {
      const least = bar.low === bar.high ? width : span / 300;
      const margin = Math.max(least - bar.high + bar.low, 0) / 2;
      Object.assign(bar, {begin: bar.low - margin, end: bar.high + margin});
    }
    // Names lie beside their bars, other numbers below.
    const isNamed = isDiscrete && found.some(one => one && one.labels);
    const [along, across] = isNamed ? ['y', 'x'] : ['x', 'y'];
    const size = new Set(bars.map(bar => bar.label)).size;
    const of = found.filter(one => one).map(one =>
        `${one.is_whole ? 'all' : 'a sample of'} ${format(one.of)}`);
    const unit = ['lengths', 'returns'].includes(name) ? 'episodes' : 'steps';
    draw(parent, `${titleOf(name)}, ${of.join(' beside ')} ${unit}`, {
      data: {values: bars},
      ...(isNamed && {height: (several ? 24 : 15) * size}),
      mark: {type: 'bar', orient: isNamed ? 'horizontal' : 'vertical',
             cursor: 'pointer'},
      encoding: {
        [along]: isDiscrete ?
            {field: 'label', type: 'ordinal', sort: {field: 'order'}, title: null,
             scale: {paddingInner: .15}, axis: {labelAngle: 0}} :
            {field: 'begin', type: 'quantitative', title: null,
             scale: {zero: false, nice: false}, axis: {tickCount: 5}},
        ...(isDiscrete ?
            several && {[`${along}Offset`]: {field: 'source', sort: sources}} :
            {x2: {field: 'end'}}),
        [across]: {
          field: several ? 'share' : 'count', type: 'quantitative', stack: null,
          title: several ? `share of ${unit}` : unit,
          axis: several ? {format: '%', tickCount: 4} :
              whole(Math.max(...bars.map(bar => bar.count))),
        },
        [`${across}2`]: {datum: 0},
        color: colourOf,
        opacity: {value: several && !isDiscrete ? .6 : 1},
        tooltip: [
          ...(several ? [{field: 'source'}] : []),
          ...(isDiscrete ? [{field: 'label', title: 'value'}] :
              [{field: 'low', title: 'from'}, {field: 'high', title: 'to'}]),
          {field: 'count'}, {field: 'example', title: 'shown in'},
        ],
      },
    });
  }

  // The length of an episode is its number of transitions.
  function titleOf(name) {
    return name === 'lengths' ? 'transitions' : name;
  }

  function drawOrder(parent) {
    const bins = [], points = [];
    all.forEach((one, which) => {
      one.order.forEach(bin => bins.push({...bin, source: sources[which]}));
      one.episodes.forEach(episode => points.push({
        source: sources[which], first: episode.episode, mean: episode.return,
        place: placeOf(which, [episode.episode, 0]),
        why: episode.reasons.join(', ') || 'an example',
      }));
    });
    const x = {field: 'first', type: 'quantitative', title: 'episode',
               axis: whole(Math.max(...bins.map(bin => bin.first)))};
    const y = {type: 'quantitative', scale: {zero: false}, title: 'return',
               axis: {tickCount: 4}};
    draw(parent, 'returns along the data set, and the episodes shown below', {
      data: {values: bins},
      layer: [
        {mark: {type: 'rule', opacity: .6}, encoding: {
          x, y: {...y, field: 'min'}, y2: {field: 'max'}, color: colourOf}},
        {mark: {type: 'line', point: all.some(one => one.is_sample) && {size: 9}},
         encoding: {x, y: {...y, field: 'mean'}, color: colourOf}},
        {data: {values: points},
         mark: {type: 'circle', size: 60, opacity: 1, cursor: 'pointer',
                stroke: 'var(--page)', strokeWidth: 1.5},
         encoding: {x, y: {...y, field: 'mean'}, color: colourOf, tooltip: [
           {field: 'first', title: 'episode'}, {field: 'mean', title: 'return'},
           {field: 'why', title: 'shown as'}]}},
      ],
    });
  }

  // From the least to the greatest number of each column, a row for each.
  function drawRanges(parent, path) {
    const rows = [], ends = [];
    let total = 0;
    all.forEach((one, which) => {
      const field = one.fields.find(each => each.path === path);
      const columns = field ? field.columns : [];
      total = Math.max(total, columns.length);
      columns.slice(0, 64).forEach((column, index) => {
        const row = {source: sources[which], name: `[${index}]`, order: index};
        rows.push({...row, min: column.min, max: column.max,
                   low: column.quantiles['0.05'], high: column.quantiles['0.95'],
                   median: column.quantiles['0.5']});
        for (const [end, at] of [['min', column.min_at], ['max', column.max_at]]) {
          if (column[end] !== null) {
            ends.push({...row, value: column[end], place: placeOf(which, at),
                       example: at ? hint(at) : '-'});
          }
        }
      });
    });
    const count = new Set(rows.map(row => row.name)).size;
    const y = {field: 'name', type: 'nominal', sort: {field: 'order'}, title: null};
    const yOffset = several ? {yOffset: {field: 'source', sort: sources}} : {};
    const x = {type: 'quantitative', title: null, scale: {zero: false},
               axis: {tickCount: 5}};
    const tooltip = ['min', 'low', 'median', 'high', 'max'].map(
        field => ({field, format: '.4~g'}));
    draw(parent, path.replace(/^steps\//, '') +
        (count < total ? `, the first ${count} of ${total} numbers` : ''), {
      data: {values: rows},
      height: (several ? 24 : 15) * count,
      layer: [
        {mark: 'rule', encoding: {
          y, ...yOffset, x: {...x, field: 'min'}, x2: {field: 'max'},
          color: colourOf}},
        {mark: {type: 'rule', strokeWidth: 6}, encoding: {
          y, ...yOffset, x: {...x, field: 'low'}, x2: {field: 'high'},
          color: colourOf, tooltip}},
        {mark: {type: 'tick', thickness: 2, size: 12, color: 'var(--text)'},
         encoding: {y, ...yOffset, x: {...x, field: 'median'}, tooltip}},
        {data: {values: ends},
         mark: {type: 'circle', size: 40, opacity: 1, cursor: 'pointer'},
         encoding: {y, ...yOffset, x: {...x, field: 'value'}, color: colourOf,
                    tooltip: [{field: 'value', format: '.4~g'},
                              {field: 'example', title: 'in'}]}},
      ],
    });
  }

  function drawDistributions() {
    const plots = get('distributions').querySelector('.plots');
    const names = [...new Set(all.flatMap(one => Object.keys(one.histograms)))];
    const sentences = [];
    for (const name of names) {
      const found = all.map(one => one.histograms[name]).filter(one => one);
      if (found.every(one => one.counts.length <= 1)) {
        const values = found.map(one => !one.counts.length ? 'never a number' :
            `always ${one.labels ? one.labels[0] : format(one.values[0])}`);
        sentences.push(`${titleOf(name)} is ${[...new Set(values)].join(' beside ')}`);
      } else {
        drawHistogram(plots, name);
      }
    }
    get('constants').textContent =
        sentences.map(sentence => `${sentence}.`).join(' ');
    if (names.length) drawOrder(plots);
    const paths = new Set(all.flatMap(one => one.fields.filter(
        field => /^steps\/(action|observation)(\/|$)/.test(field.path) &&
            field.columns.length > 1).map(field => field.path)));
    paths.forEach(path => drawRanges(plots, path));
    get('distributions').hidden = !names.length;
  }

  // The episode that is shown, and its views.
  let shown = null, which = 0, views = [];
  const choices = all.flatMap((one, side) => one.episodes.map(
      episode => ({side, episode})));

  // Columns share an axis if each takes a tenth of it at least. The largest
  // group is the first, and outliers follow.
  function groupsOf(columns) {
    const groups = [];
    for (const column of [...columns].sort((a, b) => a.span - b.span)) {
      const fits = group => Math.max(column.max, ...group.map(one => one.max)) -
          Math.min(column.min, ...group.map(one => one.min)) <=
          10 * group[0].span;
      const group = groups.find(fits);
      if (group) group.push(column);
      else groups.push([column]);
    }
    groups.forEach(group => group.sort((a, b) => a.index - b.index));
    return groups.sort(
        (a, b) => b.length - a.length || a[0].index - b[0].index);
  }

  function drawCurves() {
    get('curves').replaceChildren();
    const unchanged = [], drawn = [];
    for (const [field, columns] of Object.entries(shown.curves)) {
      const found = columns.map((column, index) => {
        const numbers = column.filter(value => value !== null);
        const max = numbers.reduce((a, b) => Math.max(a, b), -Infinity);
        const min = numbers.reduce((a, b) => Math.min(a, b), Infinity);
        const span = max - min;
        const name = columns.length > 1 ? `[${index}]` : '';
        if (numbers.length && span === 0) {
          unchanged.push(`${field}${name} is ${format(numbers[0])}`);
        }
        return {index, name, column, min, max, span};
      });
      for (const group of groupsOf(found.filter(one => one.span > 0))) {
        drawn.push(drawGroup(field, group));
      }
    }
    get('unchanged').textContent = unchanged.length ?
        `In all of this episode, ${unchanged.join(', ')}.` : '';
    return Promise.all(drawn);
  }

  function drawGroup(field, group) {
    const values = group.flatMap(one => one.column.map((value, row) => ({
      step: shown.steps[row], value, name: one.name,
      place: `#${which}/${shown.episode}/${shown.steps[row]}`,
    })));
    const isOne = group.length === 1;
    const spec = {
      data: {values},
      layer: [
        {params: isOne ? [] :
            [{name: 'chosen', select: {type: 'point', fields: ['name']},
              bind: 'legend'}],
         mark: {type: 'line', strokeWidth: 1.4},
         encoding: {
           color: {field: 'name', type: 'nominal',
                   sort: group.map(one => one.name),
                   scale: {scheme: group.length > 10 ? 'tableau20' : 'tableau10'},
                   legend: isOne ? null : {columns: 6, symbolType: 'stroke',
                                           symbolLimit: 0}},
           opacity: isOne ? {value: 1} :
               {condition: {param: 'chosen', value: 1}, value: .12},
         }},
        {mark: {type: 'point', opacity: 0, size: 60, cursor: 'pointer'},
         encoding: {tooltip: [
           {field: 'name'}, {field: 'step'}, {field: 'value', format: '.4~g'}]}},
        {data: {name: 'now', values: [{step: 0}]},
         mark: {type: 'rule', color: 'var(--strong)'},
         encoding: {y: {value: 0}, y2: {value: 'height'}}},
      ],
      encoding: {
        x: {field: 'step', type: 'quantitative', title: 'step',
            scale: {nice: false}, axis: whole(shown.num_steps - 1)},
        y: {field: 'value', type: 'quantitative', title: null,
            scale: {zero: false}, axis: {tickCount: 4}},
      },
    };
    const caption = isOne ? `${field}${group[0].name}` : field;
    const {values: known, labels} = all[which].histograms[field] || {};
    const show = value => labels && known.includes(value) ?
        labels[known.indexOf(value)] : format(value);
    return draw(get('curves'), caption, spec).then(({view, figure}) => {
      const output = make('div', {class: 'values quiet'});
      figure.append(output);
      return {view, output, group, show};
    });
  }

  function drawFrames() {
    get('frames').replaceChildren(...Object.entries(shown.frames).map(
        ([field, images]) => make('figure', {}, make('figcaption', {}, field),
            make('div', {class: 'strip'}, ...images.map((image, index) => {
              const step = shown.frame_steps[index];
              const figure = make('figure', {'data-step': step},
                  make('img', {src: `data:image/jpeg;base64,${image}`,
                               alt: `${field} of step ${step}`}),
                  make('figcaption', {}, `step ${step}`));
              figure.addEventListener('click', () => showStep(step));
              return figure;
            })))));
  }

  const instructionOf = episode =>
      episode.instruction ? [episode.instruction] : [];

  function showEpisode(side, episode) {
    which = side;
    shown = episode;
    get('episode').value = `${side}/${episode.episode}`;
    const why = episode.reasons.length ? ` (${episode.reasons.join(', ')})` : '';
    get('summary').textContent =
        [`Episode ${episode.episode}${why}`, ...instructionOf(episode)].join(
            ', ') + `: ${counted(episode.num_transitions, 'transition')}, ` +
        `return ${format(episode.return)}, ` +
        (episode.is_terminal ? 'terminal' : 'truncated');
    get('step').max = Math.max(episode.steps.length - 1, 0);
    drawFrames();
    views.forEach(one => one.view.finalize());
    views = [];
    drawCurves().then(made => {
      if (shown !== episode) return;
      views = made;
      showStep(shown.steps[Number(get('step').value)]);
    });
  }

  function showStep(step) {
    const at = shown.steps.findLastIndex(one => one <= step);
    const row = Math.max(at, 0);
    get('step').value = row;
    const found = shown.steps[row];
    get('step-number').value = found === undefined ? '' : `step ${found}`;
    for (const {view, output, group, show} of views) {
      view.data('now', [{step: found}]).runAsync();
      output.textContent = group.slice(0, 12).map(
          one => `${one.name} ${show(one.column[row])}`).join(', ') +
          (group.length > 12 ? ', …' : '');
    }
    const frame = shown.frame_steps.filter(one => one <= found).pop();
    for (const figure of get('frames').querySelectorAll('[data-step]')) {
      figure.classList.toggle('now', Number(figure.dataset.step) === frame);
    }
  }

  function follow() {
    const [side, episode, step] = location.hash.slice(1).split('/').map(Number);
    const one = choices.find(
        choice => choice.side === side && choice.episode.episode === episode);
    get('missing').textContent = one || !location.hash ? '' :
        `This page does not show episode ${episode}. Choose one of those above.`;
    if (!one) return;
    if (one.episode !== shown) showEpisode(side, one.episode);
    showStep(step || 0);
    get('player').scrollIntoView({block: 'start'});
  }

  function choose(choice) {
    location.hash = `#${choice.side}/${choice.episode.episode}/0`;
  }

  function drawPlayer() {
    if (!choices.length) return;
    get('player').hidden = false;
    all.forEach((one, side) => {
      const options = one.episodes.map(episode => make(
          'option', {value: `${side}/${episode.episode}`},
          [`Episode ${episode.episode}`, ...instructionOf(episode),
           `return ${format(episode.return)}`, ...episode.reasons].join(', ')));
      get('episode').append(...(several ?
          [make('optgroup', {label: sources[side]}, ...options)] : options));
    });
    get('episode').addEventListener('change', event => {
      location.hash = `#${event.target.value}/0`;
    });
    get('step').addEventListener(
        'input', event => showStep(shown.steps[Number(event.target.value)]));
    for (const [id, by] of [['previous', -1], ['next', 1]]) {
      get(id).addEventListener('click', () => {
        const at = choices.findIndex(choice => choice.episode === shown);
        choose(choices[(at + by + choices.length) % choices.length]);
      });
    }
    addEventListener('hashchange', follow);
    showEpisode(choices[0].side, choices[0].episode);
    showStep(0);
    follow();
  }

  drawDistributions();
  drawPlayer();
})();
