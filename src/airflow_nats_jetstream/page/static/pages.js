// @ts-check
// SPDX-License-Identifier: Apache-2.0
/** The pages of a list: which rows one displays, and the steps to the previous and the next one. No I/O. */

import { count } from "./quantities.js";

/** @import { Place } from "./places.js" */

/**
 * A link to another page of a list. `before` is where the pages before that page begin, if they cannot be computed.
 * @typedef {{ place: Place, text: string, before: ReadonlyArray<number> }} Step
 */
/** Null where there is no such page. @typedef {{ previous: Step | null, following: Step | null }} Steps */

/**
 * Which rows of a list are displayed: "51–100 of 1,000".
 *
 * @param {number} offset
 * @param {number} shown
 * @param {number} total
 */
export function range(offset, shown, total) {
  return shown === 0 ? `none of ${count(total)}` : `${count(offset + 1)}–${count(offset + shown)} of ${count(total)}`;
}

/**
 * The steps in a list whose pages begin at offsets.
 *
 * @param {Place} place
 * @param {{ limit: number, shown: number, total: number }} page
 * @returns {Steps}
 */
export function stepsByOffset(place, { limit, shown, total }) {
  const { offset } = place;
  return {
    previous: offset === 0 ? null : { place: { ...place, offset: Math.max(0, offset - limit) }, text: "Previous", before: [] },
    following: offset + shown < total ? { place: { ...place, offset: offset + limit }, text: "Next", before: [] } : null,
  };
}

/**
 * The steps in a list of which each page says where the next one begins. Only the pages that the user came through are
 * known before it, so a page that was opened by its address leads back to the first one.
 *
 * @param {Place} place
 * @param {number | null} next where the next page begins
 * @param {ReadonlyArray<number>} before where the earlier pages begin
 * @returns {Steps}
 */
export function stepsByNumber(place, next, before) {
  const { after } = place;
  const known = before.at(-1);
  const back = known === undefined ? { place: { ...place, after: 0 }, text: "First page" } : { place: { ...place, after: known }, text: "Previous" };
  return {
    previous: after === 0 ? null : { ...back, before: before.slice(0, -1) },
    following: next === null ? null : { place: { ...place, after: next }, text: "Next", before: [...before, after] },
  };
}

/**
 * What the browser's history has kept of a step: where the earlier pages begin.
 *
 * @param {unknown} state
 * @returns {number[]}
 */
export function pagesBefore(state) {
  const { before } = /** @type {{ before?: unknown }} */ (state ?? {});
  return Array.isArray(before) && before.every(Number.isSafeInteger) ? before : [];
}
