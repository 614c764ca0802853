// @ts-check
// SPDX-License-Identifier: Apache-2.0
/** Numbers, sizes and durations as a person reads them. */

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** @type {ReadonlyArray<readonly [string, number]>} */
const SPANS = [
  ["d", 86_400],
  ["h", 3_600],
  ["min", 60],
  ["s", 1],
];

/**
 * An integer with commas between thousands, or "?" if the number is unknown.
 *
 * @param {number | null | undefined} number
 */
export function count(number) {
  if (typeof number !== "number" || !Number.isFinite(number)) return "?";
  return Math.trunc(number).toString().replace(/\B(?=(\d{3})+$)/g, ",");
}

/**
 * A number with its noun: "1 message", "2,482 messages".
 *
 * @param {number | null | undefined} number
 * @param {string} noun
 */
export function counted(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/**
 * A difference with its sign: "+52", "−3", "±0".
 *
 * @param {number} difference
 */
export function signed(difference) {
  if (difference === 0) return "±0";
  return `${difference > 0 ? "+" : "−"}${count(Math.abs(difference))}`;
}

/**
 * A number of bytes: "44 B", "1.2 MiB".
 *
 * @param {number | null | undefined} number
 */
export function bytes(number) {
  if (typeof number !== "number" || !Number.isFinite(number)) return "?";
  let [size, unit] = [number, 0];
  while (size >= 1023.95 && unit < UNITS.length - 1) [size, unit] = [size / 1024, unit + 1];
  return `${unit === 0 ? count(size) : size.toFixed(1)} ${UNITS[unit]}`;
}

/**
 * A duration in its two largest units: "12 s", "3 min 20 s", "4 d 2 h".
 *
 * @param {number | null | undefined} seconds
 */
export function duration(seconds) {
  if (typeof seconds !== "number" || !Number.isFinite(seconds)) return "unknown";
  let left = Math.max(0, Math.round(seconds));
  const parts = [];
  for (const [unit, size] of SPANS) {
    const whole = Math.floor(left / size);
    if (whole > 0) parts.push(`${whole} ${unit}`);
    else if (parts.length > 0) break; // "1 d" and not "1 d 5 min": the second unit follows the first one directly
    left -= whole * size;
    if (parts.length === 2) break;
  }
  return parts.join(" ") || "0 s";
}
