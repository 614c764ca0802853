// @ts-check
// SPDX-License-Identifier: Apache-2.0
/** What the page has seen of each consumer's backlog since it was opened. */

/** One observation: `at` in seconds on the server's clock, `value` in messages.
 * @typedef {{ at: number, value: number }} Sample */

/** Seconds that are remembered. */
const WINDOW = 900;
/** Samples of one series: one every five seconds. */
const SAMPLES = WINDOW / 5 + 1;
/** Series that are remembered at most; the one that was not updated for the longest time is forgotten first. */
export const SERIES = 1_000;

/**
 * The samples with a newer one. If the clock ran backwards, as it does after the server was replaced, the series begins
 * again.
 *
 * @param {ReadonlyArray<Sample>} samples
 * @param {Sample} sample
 * @returns {ReadonlyArray<Sample>}
 */
export function extended(samples, sample) {
  const last = samples.at(-1);
  if (last !== undefined && sample.at < last.at) return [sample];
  const kept = samples.filter((each) => each.at !== sample.at && each.at >= sample.at - WINDOW);
  return [...kept, sample].slice(-SAMPLES);
}

/** The series of all consumers, by name. */
export class History {
  /** @type {Map<string, ReadonlyArray<Sample>>} */
  #series = new Map();

  /**
   * @param {string} name
   * @returns {ReadonlyArray<Sample>}
   */
  of(name) {
    return this.#series.get(name) ?? [];
  }

  /**
   * @param {string} name
   * @param {Sample} sample
   */
  record(name, sample) {
    const samples = extended(this.of(name), sample);
    this.#series.delete(name); // so that the least recently updated series is the first one of the map
    this.#series.set(name, samples);
    for (const oldest of this.#series.keys()) {
      if (this.#series.size <= SERIES) break;
      this.#series.delete(oldest);
    }
  }
}
