// @ts-check
// SPDX-License-Identifier: Apache-2.0
/** The overview of a connection: what needs attention, and the claimed consumers of each stream. */

import { Backlog } from "./backlog.js";
import { dateAndTime } from "./clock.js";
import { ActionButton } from "./dialog.js";
import { ClaimLink, Count, h, Name, PlaceLink, TaskLink } from "./elements.js";
import { Findings } from "./finding.js";
import { bytes, count, counted, duration } from "./quantities.js";
import { Table } from "./table.js";
import { visible } from "./text.js";

/** @import { Barrier, Consumer, Overview, Stream } from "./api.js" */
/** @import { Subject } from "./finding.js" */
/** @import { Column } from "./table.js" */

const { Badge, Box, Heading, HStack, Stack, Text } = globalThis.ChakraUI;

/** @param {{ overview: Overview }} properties */
export function OverviewView({ overview }) {
  return h(
    Stack,
    { gap: 6 },
    h(Findings, { findings: allFindings(overview) }),
    overview.streams.length === 0
      ? h(Text, { color: "fg.muted" }, "No claims have been taken with this connection. A consumer appears here when a sensor takes its first claim.")
      : overview.streams.map((stream) => h(StreamSection, { key: stream.name, connection: overview.id, stream })),
    h(Facts, { overview }),
  );
}

/**
 * @param {Overview} overview
 * @returns {{ finding: import("./api.js").Finding, subject: Subject }[]}
 */
function allFindings({ id, findings, streams }) {
  const ofConnection = findings.map((finding) => ({ finding, subject: { connection: id, stream: "", consumer: "", letters: "" } }));
  const ofConsumers = streams.flatMap((stream) =>
    stream.consumers.flatMap((consumer) =>
      consumer.findings.map((finding) => ({ finding, subject: subjectOf(id, stream, consumer) })),
    ),
  );
  return [...ofConnection, ...ofConsumers];
}

/**
 * @param {string} connection
 * @param {Stream} stream
 * @param {Consumer} consumer
 * @returns {Subject}
 */
function subjectOf(connection, stream, consumer) {
  return { connection, stream: stream.name, consumer: consumer.name, letters: stream.name };
}

/** @param {{ overview: Overview }} properties */
function Facts({ overview: { server, version, domain, ledger, watched_since: since } }) {
  return h(
    Text,
    { color: "fg.muted", fontSize: "sm", overflowWrap: "anywhere" },
    "Server ",
    h(Name, { text: server }),
    ", nats-server ",
    h(Name, { text: version }),
    domain ? h(Box, { as: "span" }, ", domain ", h(Name, { text: domain })) : null,
    ", ledger ",
    h(Name, { text: ledger }),
    since === "" ? null : h(Box, { as: "span" }, ", watched since ", dateAndTime(since)),
  );
}

/** @param {{ connection: string, stream: Stream }} properties */
function StreamSection({ connection, stream }) {
  const { name, messages, consumers, dead_letters: letters } = stream;
  return h(
    Box,
    { as: "section" },
    h(
      HStack,
      { alignItems: "baseline", flexWrap: "wrap", columnGap: 4, rowGap: 0, mb: 1 },
      h(Heading, { as: "h2", size: "md" }, h(Name, { text: name })),
      messages === null ? null : h(Text, { color: "fg.muted", fontSize: "sm" }, `${counted(messages, "message")}, ${bytes(stream.bytes)}`),
      letters.exists && letters.count !== 0
        ? h(PlaceLink, { place: { view: "letters", connection, stream: name } }, counted(letters.count, "dead letter"))
        : h(Text, { color: "fg.muted", fontSize: "sm" }, "no dead letters"),
    ),
    h(Table, {
      caption: "The claimed consumers of this stream",
      columns: columnsOf(connection, name),
      rows: consumers,
      keyOf: (/** @type {Consumer} */ consumer) => consumer.name,
      even: true,
      empty: "No consumer of this stream is claimed.",
    }),
  );
}

/**
 * @param {string} connection
 * @param {string} stream
 * @returns {Column<Consumer>[]}
 */
function columnsOf(connection, stream) {
  return [
    { title: "Consumer", width: "18%", cell: (consumer) => h(ConsumerName, { consumer }) },
    { title: "Waiting", numeric: true, width: "9%", cell: ({ pending, ...consumer }) => h(Count, { number: pending, missing: missing(consumer) }) },
    { title: "Last minutes", width: "12%", cell: ({ name }) => h(Backlog, { connection, stream, consumer: name }) },
    { title: "Unacknowledged", numeric: true, width: "11%", cell: ({ ack_pending: number, ...consumer }) => h(Count, { number, missing: missing(consumer) }) },
    { title: "Floor", numeric: true, width: "9%", cell: ({ floor, ...consumer }) => h(Count, { number: floor, missing: missing(consumer) }) },
    {
      title: "Open claims",
      numeric: true,
      width: "9%",
      cell: ({ name, open }) =>
        h(PlaceLink, { place: { view: "claims", connection, stream, consumer: name } }, h(Count, { number: open })),
    },
    {
      title: "Held",
      numeric: true,
      width: "6%",
      cell: ({ name, held }) =>
        h(PlaceLink, { place: { view: "claims", connection, stream, consumer: name, held: "yes" } }, h(Count, { number: held })),
    },
    { title: "Oldest claim", width: "15%", cell: (consumer) => h(Oldest, { connection, consumer }) },
    { title: "Actions", silent: true, cell: (consumer) => h(ConsumerActions, { connection, stream, consumer }) },
  ];
}

/**
 * What is displayed instead of a number of a consumer: nothing is unknown of one that does not exist.
 *
 * @param {{ exists: boolean | null }} consumer
 */
const missing = ({ exists }) => (exists === false ? "\u2013" : "?");

/** @param {{ consumer: Consumer }} properties */
function ConsumerName({ consumer: { name, exists, findings, stopped, unmatched, paused_until: paused, waiting_pulls: pulls } }) {
  const level = findings.some((finding) => finding.level === "error") ? "error" : "warning";
  const pulled = pulls === null ? "" : pulls === 0 ? "nobody pulls" : counted(pulls, "waiting pull");
  return h(
    Box,
    null,
    h(Name, { text: name }),
    findings.length === 0 ? null : h(Badge, { colorPalette: level, ml: 2 }, counted(findings.length, "finding")),
    stopped === 0 ? null : h(Badge, { colorPalette: "warning", ml: 2 }, counted(stopped, "stopped key")),
    exists === false ? h(Badge, { colorPalette: "error", ml: 2 }, "does not exist") : null,
    paused === null ? null : h(Badge, { colorPalette: "warning", ml: 2, whiteSpace: "normal" }, `paused until ${dateAndTime(paused) ?? visible(paused)}`),
    h(Text, { as: "span", display: "block", color: "fg.muted", fontSize: "sm" }, pulled),
    unmatched === "" ? null : h(Text, { as: "span", display: "block", fontSize: "sm", overflowWrap: "anywhere" }, visible(unmatched)),
  );
}

/** @param {{ connection: string, consumer: Consumer }} properties */
function Oldest({ connection, consumer: { oldest, usual, barrier } }) {
  if (oldest === null) return h(Text, { as: "span", color: "fg.muted" }, "none");
  return h(
    Box,
    null,
    h(ClaimLink, { connection, id: oldest.id }),
    h(
      Text,
      { as: "span", display: "block", color: "fg.muted", fontSize: "sm" },
      `for ${duration(oldest.age)}${usual === null ? "" : `, usually ${duration(usual)}`}`,
    ),
    barrier === null || barrier.messages === 0 ? null : h(Blocking, { connection, barrier }),
  );
}

/**
 * What the next batch waits for, with `ordered_by`.
 *
 * @param {{ connection: string, barrier: Barrier }} properties
 */
function Blocking({ connection, barrier: { claims, of, messages, age, claim, task } }) {
  return h(
    Box,
    { mt: 1, fontSize: "sm", overflowWrap: "anywhere" },
    `${counted(messages, "message")} ${messages === 1 ? "waits" : "wait"} for ${count(claims)} of ${counted(of, "claim")}: `,
    h(ClaimLink, { connection, id: claim }),
    `, for ${duration(age)}`,
    h(Box, null, h(TaskLink, { task })),
  );
}

/** @param {{ connection: string, stream: string, consumer: Consumer }} properties */
function ConsumerActions({ connection, stream, consumer: { name, exists, paused_until: paused } }) {
  if (!exists) return null;
  const of = { connection, stream, consumer: name };
  return h(
    HStack,
    { gap: 2, flexWrap: { base: "wrap", md: "nowrap" }, justifyContent: { md: "flex-end" } },
    h(ActionButton, { action: { kind: paused === null ? "pause" : "resume", ...of } }),
    h(ActionButton, { action: { kind: "reset", ...of } }),
  );
}
