// @ts-check
// SPDX-License-Identifier: Apache-2.0
/** The plot of a consumer's backlog, which grows while the page is open. */

import { h } from "./elements.js";
import { History } from "./history.js";
import { change, changed, described, points } from "./plot.js";

/** @import { Overview } from "./api.js" */

const { Box, Text } = globalThis.ChakraUI;

const WIDTH = 120;
const HEIGHT = 28;

/** Kept for as long as the browser's tab shows Airflow, because Airflow mounts the page anew during navigation. */
const history = new History();

/**
 * @param {string} connection
 * @param {string} stream
 * @param {string} consumer
 */
function named(connection, stream, consumer) {
  return JSON.stringify([connection, stream, consumer]);
}

/**
 * Remember the backlogs of all consumers of an overview.
 *
 * @param {Overview} overview
 */
export function recordBacklogs({ id, now, streams }) {
  const at = Date.parse(now) / 1_000;
  if (Number.isNaN(at)) return;
  for (const stream of streams) {
    for (const { name, pending } of stream.consumers) {
      if (pending !== null) history.record(named(id, stream.name, name), { at, value: pending });
    }
  }
}

/** @param {{ connection: string, stream: string, consumer: string }} properties */
export function Backlog({ connection, stream, consumer }) {
  const samples = history.of(named(connection, stream, consumer));
  const line = { fill: "none", stroke: "currentColor", strokeWidth: 1.5, strokeLinejoin: "round", strokeLinecap: "round" };
  return h(
    Box,
    { display: "inline-block", color: "brand.fg" },
    changed(samples)
      ? h(
          "svg",
          { role: "img", "aria-label": described(samples), viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT },
          h("polyline", { points: points(samples, WIDTH, HEIGHT), ...line }),
        )
      : null,
    h(Text, { as: "span", display: "block", color: "fg.muted", fontSize: "sm" }, change(samples)),
  );
}
