// Numbers and times in words.

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

const digits = (number) => (number >= 100 || Number.isInteger(number) ? number.toFixed(0) : number.toFixed(1));

export function size(bytes) {
  if (bytes == null) return "";
  let unit = 0;
  while (bytes >= 1024 && unit < BINARY.length - 1) [bytes, unit] = [bytes / 1024, unit + 1];
  return `${digits(bytes)} ${BINARY[unit]}`;
}

export function count(number) {
  if (number == null) return "";
  if (number < 10_000) return digits(number);
  return number < 1e7 ? `${digits(number / 1e3)} k` : `${digits(number / 1e6)} M`;
}

export const megabytes = (bytes) => (bytes == null ? "" : `${digits(bytes / 1e6)} MB/s`);

export function time(ns) {
  if (ns == null) return "";
  if (ns < 1e6) return `${digits(ns / 1e3)} µs`;
  return ns < 1e9 ? `${digits(ns / 1e6)} ms` : `${digits(ns / 1e9)} s`;
}

export const percent = (part) => (part == null ? "" : `${Math.round(part * 100)} %`);

export function duration(seconds) {
  if (seconds == null) return "";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${digits(seconds / 3600)} h`;
}

export const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour12: false });

export const plural = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;

// The last part of a path.
export const basename = (path) => path.split("/").filter(Boolean).pop() ?? path;
