// The cursor that charts and the log share: a place on one kind of x (step, time, relative).
let cursor = null;
let frame = 0;
const listeners = [];

export const cursorOn = (kind) => (cursor?.kind === kind ? cursor.x : null);

// run(kind, x, source) is called once a frame; x is null where nothing is pointed at.
export function onCursor(run) {
  listeners.push(run);
}

export function moveCursor(kind, x, source = "chart") {
  cursor = x === null ? null : { kind, x };
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    for (const run of listeners) run(cursor?.kind ?? kind, cursor?.x ?? null, source);
  });
}
