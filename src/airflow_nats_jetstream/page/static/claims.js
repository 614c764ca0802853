// @ts-check
// SPDX-License-Identifier: Apache-2.0
/** The open claims of a connection, the oldest first. */

import { useAnswer } from "./answers.js";
import { ActionButton } from "./dialog.js";
import { Age, ClaimLink, Count, h, Name, TaskLink } from "./elements.js";
import { Choice, Filters, Typed } from "./filters.js";
import { List } from "./list.js";
import { range, stepsByOffset } from "./pages.js";
import { path, query } from "./places.js";
import { bytes } from "./quantities.js";

/** @import { Claim, Claims, Overview } from "./api.js" */
/** @import { Place } from "./places.js" */
/** @import { Column } from "./table.js" */

const { Badge, Box, Text } = globalThis.ChakraUI;

/** Claims on one page. */
const LIMIT = 50;

/**
 * @param {{ place: Place, overview: Overview | undefined, go: (changed: Partial<Place>) => void }} properties
 */
export function ClaimsView({ place, overview, go }) {
  const { connection, stream, consumer, held, dag, run, offset } = place;
  const found = path("connections", connection, "claims");
  const answer = /** @type {import("./answers.js").Answer<Claims>} */ (
    useAnswer(found && `${found}${query({ offset, limit: LIMIT, stream, consumer, held, dag, run })}`)
  );
  const { claims, total } = answer.data ?? { claims: [], total: 0 };
  return h(
    Box,
    null,
    h(ClaimFilters, { place, overview, go }),
    total === 0 ? null : h(ReleaseAll, { place, total }),
    h(List, {
      answer,
      table: {
        caption: "Open claims, the oldest first",
        columns: columnsOf(connection),
        rows: claims,
        keyOf: (/** @type {Claim} */ claim) => claim.id,
        empty: total === 0 ? "No open claim matches." : "This page of the list is empty by now.",
      },
      label: "Pages of open claims",
      text: range(offset, claims.length, total),
      steps: stepsByOffset(place, { limit: LIMIT, shown: claims.length, total }),
    }),
  );
}

/**
 * Releases all listed claims, on all pages of the list, once a Dag or a consumer of a stream is chosen.
 *
 * @param {{ place: Place, total: number }} properties
 */
function ReleaseAll({ place: { connection, stream, consumer, held, dag, run }, total }) {
  if (dag === "" && (stream === "" || consumer === "")) return null;
  const chosen = { connection, stream, consumer, held, dag, run: dag === "" ? "" : run };
  return h(Box, { mb: 2 }, h(ActionButton, { action: { kind: "release_all", ...chosen }, label: `Release all ${total}` }));
}

/**
 * @param {{ place: Place, overview: Overview | undefined, go: (changed: Partial<Place>) => void }} properties
 */
function ClaimFilters({ place: { stream, consumer, held, dag, run }, overview, go }) {
  const streams = overview?.streams ?? [];
  const consumers = streams.filter(({ name }) => stream === "" || name === stream).flatMap((each) => each.consumers);
  const names = [...new Set(consumers.map(({ name }) => name))];
  return h(
    Filters,
    null,
    h(Choice, {
      label: "Stream",
      value: stream,
      options: [["", "All"], ...streams.map(({ name }) => /** @type {const} */ ([name, name]))],
      choose: (value) => go({ stream: value, consumer: "", offset: 0 }),
    }),
    h(Choice, {
      label: "Consumer",
      value: consumer,
      options: [["", "All"], ...names.map((name) => /** @type {const} */ ([name, name]))],
      choose: (value) => go({ consumer: value, offset: 0 }),
    }),
    h(Choice, {
      label: "Held",
      value: held,
      options: [["", "All"], ["yes", "Held by an attempt"], ["no", "Held by nobody"]],
      choose: (value) => go({ held: value, offset: 0 }),
    }),
    h(Typed, { key: dag, label: "Dag", value: dag, verb: "Filter", choose: (value) => go({ dag: value, run: "", offset: 0 }) }),
    dag === ""
      ? null
      : h(Typed, { key: `run ${run}`, label: "Run", value: run, verb: "Filter", choose: (value) => go({ run: value, offset: 0 }) }),
  );
}

/**
 * @param {string} connection
 * @returns {Column<Claim>[]}
 */
function columnsOf(connection) {
  return [
    {
      title: "Claim",
      cell: ({ id, current }) =>
        h(Box, null, h(ClaimLink, { connection, id }), current ? null : h(Badge, { colorPalette: "warning", ml: 2 }, "cannot be settled")),
    },
    {
      title: "Stream / consumer",
      cell: ({ stream, consumer }) =>
        h(
          Box,
          null,
          h(Name, { text: stream }),
          h(Text, { as: "span", display: "block", color: "fg.muted", fontSize: "sm" }, h(Name, { text: consumer })),
        ),
    },
    {
      title: "Messages",
      numeric: true,
      cell: (claim) =>
        h(
          Box,
          null,
          h(Count, { number: claim.count }),
          h(Text, { as: "span", display: "block", color: "fg.muted", fontSize: "sm" }, bytes(claim.bytes)),
        ),
    },
    { title: "Sequences", cell: ({ sequences }) => h(Name, { text: sequences, limit: 40, mono: true }) },
    { title: "Age", cell: ({ age, since }) => h(Age, { seconds: age, at: since }) },
    { title: "Held by", width: "20%", cell: ({ holder }) => h(Holder, { holder }) },
    { title: "Taken by", width: "22%", cell: (claim) => h(TaskLink, { task: claim.taken_by }) },
    { title: "Actions", silent: true, cell: ({ id }) => h(ActionButton, { action: { kind: "release", connection, claim: id } }) },
  ];
}

/** @param {{ holder: Claim["holder"] }} properties */
function Holder({ holder }) {
  if (holder === null) return h(Badge, { variant: "outline" }, "nobody");
  return holder.task === null ? h(Name, { text: holder.token, mono: true }) : h(TaskLink, { task: holder.task });
}
