// How sizes, times and counts are written; the same rules as dashboard/words.py.
const GIB = 1024 ** 3;

export function size(count) {
  if (count >= 1024 * GIB) return `${(count / (1024 * GIB)).toFixed(1)} TiB`;
  if (count >= 0.1 * GIB) return `${(count / GIB).toFixed(1)} GiB`;
  if (count >= 1024 ** 2) return `${Math.round(count / 1024 ** 2)} MiB`;
  if (count >= 1024) return `${Math.round(count / 1024)} KiB`;
  return `${Math.round(count)} bytes`;
}

// Beside a total in GiB, so without the unit.
export function gib(count) {
  return (count / GIB).toFixed(1);
}

export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const [days, hours] = [Math.floor(whole / 86400), Math.floor((whole % 86400) / 3600)];
  const [minutes, left] = [Math.floor((whole % 3600) / 60), whole % 60];
  if (days) return hours ? `${days} d ${hours} h` : `${days} d`;
  if (hours) return minutes ? `${hours} h ${minutes} min` : `${hours} h`;
  if (minutes >= 10 || (minutes && !left)) return `${minutes} min`;
  return minutes ? `${minutes} min ${left} s` : `${left} s`;
}

export function relative(seconds) {
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `in ${duration(seconds)}` : `${duration(-seconds)} ago`;
}

export function value(number) {
  if (number === null || number === undefined) return "";
  const far = Math.abs(number);
  if (Number.isInteger(number) && far < 1e7) return number.toLocaleString("en");
  if (far >= 1e4 && far < 1e6) return Math.round(number).toLocaleString("en");
  if (far >= 1e-3 && far < 1e4) return String(Number(number.toPrecision(4)));
  return number.toPrecision(3);
}

export function clock(seconds, withSeconds = false) {
  const options = { hour: "2-digit", minute: "2-digit", hour12: false };
  if (withSeconds) options.second = "2-digit";
  return new Date(seconds * 1000).toLocaleTimeString([], options);
}
