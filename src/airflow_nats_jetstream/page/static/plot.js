// @ts-check
// SPDX-License-Identifier: Apache-2.0
/** The geometry of a small plot of a backlog, and the same in words. */

/** @import { Sample } from "./history.js" */

import { count, duration, signed } from "./quantities.js";

/** Seconds that the width of a plot represents at least, so that its line visibly grows from the left. */
const NARROWEST = 120;
/** Distance of the line from the edges, so that its width is not cut. */
const MARGIN = 2;

/**
 * The points of a line, as SVG's attribute `points` has them. The y axis reaches from the lowest to the highest value.
 *
 * @param {ReadonlyArray<Sample>} samples in the order of their time
 * @param {number} width
 * @param {number} height
 */
export function points(samples, width, height) {
  const first = samples[0];
  const last = samples.at(-1);
  if (first === undefined || last === undefined) return "";
  const values = samples.map((sample) => sample.value);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const span = Math.max(NARROWEST, last.at - first.at);
  /** @param {Sample} sample */
  const point = ({ at, value }) => {
    const x = MARGIN + ((at - first.at) / span) * (width - 2 * MARGIN);
    const share = high === low ? 0.5 : (value - low) / (high - low);
    return `${x.toFixed(1)},${(height - MARGIN - share * (height - 2 * MARGIN)).toFixed(1)}`;
  };
  return samples.map(point).join(" ");
}

/**
 * Whether there is a line to draw: the backlog has changed.
 *
 * @param {ReadonlyArray<Sample>} samples
 */
export function changed(samples) {
  return samples.some(({ value }) => value !== samples[0]?.value);
}

/**
 * How the backlog has changed since the page was opened: "+52 in 2 min". Empty until there are two samples.
 *
 * @param {ReadonlyArray<Sample>} samples
 */
export function change(samples) {
  const first = samples[0];
  const last = samples.at(-1);
  if (first === undefined || last === undefined || first.at === last.at) return "";
  return `${signed(last.value - first.value)} in ${duration(last.at - first.at)}`;
}

/**
 * The plot for readers who do not see it.
 *
 * @param {ReadonlyArray<Sample>} samples
 */
export function described(samples) {
  const last = samples.at(-1);
  if (last === undefined) return "Nothing observed yet";
  const values = samples.map((sample) => sample.value);
  const [low, high] = [count(Math.min(...values)), count(Math.max(...values))];
  const since = change(samples);
  const range = low === high ? "" : `, between ${low} and ${high}`;
  return `Backlog: ${count(last.value)} now${since ? `, ${since}` : ""}${range}`;
}
