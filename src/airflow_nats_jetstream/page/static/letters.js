// @ts-check
// SPDX-License-Identifier: Apache-2.0
/** The dead letters of a stream: why each was given up, its content on demand, and what became of it. */

import { MOST_LETTERS } from "./actions.js";
import { asFault, get } from "./api.js";
import { useAnswer } from "./answers.js";
import { Pre } from "./claim.js";
import { ActContext, ActionButton } from "./dialog.js";
import { ClaimLink, Count, h, LINE, Name, Time } from "./elements.js";
import { Choice, Filters, Typed } from "./filters.js";
import { List } from "./list.js";
import { pagesBefore, stepsByNumber } from "./pages.js";
import { path, query } from "./places.js";
import { bytes, count, counted } from "./quantities.js";
import { shortened, visible, visibleLines } from "./text.js";

/** @import { Letter, Letters, Overview, Payload } from "./api.js" */
/** @import { Place } from "./places.js" */
/** @import { Column } from "./table.js" */

const { Badge, Box, Button, HStack, Stack, Text } = globalThis.ChakraUI;
const { useContext, useEffect, useState } = globalThis.React;
const { useLocation } = globalThis.ReactRouterDOM;

/** Dead letters on one page. */
const LIMIT = 50;
/** Seconds between two requests: dead letters change less often than backlogs, and cost more requests. */
const INTERVAL = 15;

/**
 * @param {{ place: Place, overview: Overview | undefined, go: (changed: Partial<Place>) => void }} properties
 */
export function LettersView({ place, overview, go }) {
  const streams = overview?.streams ?? [];
  const stream = place.stream || (streams.find((each) => each.dead_letters.exists && each.dead_letters.count !== 0) ?? streams[0])?.name || "";
  const { connection, consumer, reason, after } = place;
  return h(
    Box,
    null,
    h(LetterFilters, { place: { ...place, stream }, overview, go }),
    stream === ""
      ? overview && h(Text, { color: "fg.muted" }, "There is no stream with claims, so there are no dead letters.")
      : h(OfStream, { key: JSON.stringify([connection, stream, consumer, reason, after]), place: { ...place, stream } }),
  );
}

/**
 * @param {{ place: Place, overview: Overview | undefined, go: (changed: Partial<Place>) => void }} properties
 */
function LetterFilters({ place: { stream, consumer, reason }, overview, go }) {
  const streams = overview?.streams ?? [];
  const consumers = streams.find(({ name }) => name === stream)?.consumers ?? [];
  return h(
    Filters,
    null,
    h(Choice, {
      label: "Stream",
      value: stream,
      options: streams.map(({ name, dead_letters: letters }) => /** @type {const} */ ([name, `${name} (${letters.exists ? count(letters.count) : 0})`])),
      choose: (value) => go({ stream: value, consumer: "", after: 0 }),
    }),
    h(Choice, {
      label: "Consumer",
      value: consumer,
      options: [["", "All"], ...consumers.map(({ name }) => /** @type {const} */ ([name, name]))],
      choose: (value) => go({ consumer: value, after: 0 }),
    }),
    h(Typed, { key: reason, label: "Reason contains", value: reason, verb: "Filter", choose: (value) => go({ reason: value, after: 0 }) }),
  );
}

/** @param {{ place: Place }} properties */
function OfStream({ place }) {
  const { connection, stream, consumer, reason, after } = place;
  const found = path("connections", connection, "dead-letters", stream);
  const answer = /** @type {import("./answers.js").Answer<Letters>} */ (
    useAnswer(found && `${found}${query({ after, limit: LIMIT, consumer, reason })}`, INTERVAL)
  );
  const [chosen, setChosen] = useState(/** @type {ReadonlyArray<number>} */ ([]));
  const [opened, setOpened] = useState(0);
  const may = useMay();
  const before = pagesBefore(useLocation().state);
  const { letters, total, complete, next } = answer.data ?? { letters: [], total: 0, complete: true, next: null };
  const numbers = letters.filter(isKept).map(({ number }) => number);
  const selected = chosen.filter((number) => numbers.includes(number));
  return h(
    List,
    {
      answer,
      table: {
        caption: "Dead letters of the stream",
        columns: columnsOf({ connection, selected, setChosen, opened, setOpened, may }),
        rows: letters,
        keyOf: (/** @type {Letter} */ letter) => letter.number,
        below: (/** @type {Letter} */ { number }) => (number === opened ? h(Content, { connection, stream, number }) : null),
        empty: "No dead letter matches.",
      },
      label: "Pages of dead letters",
      text: `${complete ? "" : "at least "}${counted(total, "dead letter")} in this stream`,
      steps: stepsByNumber(place, next, before),
    },
    h(Selected, { connection, stream, numbers, selected, setChosen }),
  );
}

/**
 * Whether it is a dead letter that is still kept. The others were replayed or discarded, or never were dead letters.
 *
 * @param {Letter} letter
 */
function isKept({ outcome, problem }) {
  return outcome === null && problem === null;
}

/** Whether the user may act. */
function useMay() {
  return useContext(ActContext) !== null;
}

/**
 * The buttons for the selected dead letters.
 *
 * @param {{
 *   connection: string, stream: string, numbers: number[], selected: ReadonlyArray<number>,
 *   setChosen: (numbers: ReadonlyArray<number>) => void,
 * }} properties
 */
function Selected({ connection, stream, numbers, selected, setChosen }) {
  if (!useMay() || numbers.length === 0) return null;
  const of = { connection, stream, numbers: selected.slice(0, MOST_LETTERS) };
  return h(
    HStack,
    { gap: 3, flexWrap: "wrap", mb: 2 },
    h(
      Button,
      { size: "xs", borderColor: LINE, fontSize: "sm", variant: "outline", onClick: () => setChosen(selected.length === numbers.length ? [] : numbers) },
      selected.length === numbers.length ? "Select none" : `Select all ${numbers.length} on this page`,
    ),
    h(ActionButton, { action: { kind: "replay", ...of }, label: "Replay…", disabled: selected.length === 0 }),
    h(ActionButton, { action: { kind: "discard", ...of }, label: "Discard…", disabled: selected.length === 0 }),
    h(Text, { "aria-live": "polite", color: "fg.muted", fontSize: "sm" }, `${count(selected.length)} selected`),
  );
}

/**
 * @param {{
 *   connection: string, selected: ReadonlyArray<number>, setChosen: (numbers: ReadonlyArray<number>) => void,
 *   opened: number, setOpened: (number: number) => void, may: boolean,
 * }} state
 * @returns {Column<Letter>[]}
 */
function columnsOf({ connection, selected, setChosen, opened, setOpened, may }) {
  /** @param {number} number */
  const toggle = (number) => setChosen(selected.includes(number) ? selected.filter((each) => each !== number) : [...selected, number]);
  /** @type {Column<Letter>} */
  const content = {
    title: "Content",
    cell: (letter) => {
      const { number, size } = letter;
      return may && isKept(letter)
        ? h(
            Button,
            {
              size: "xs", borderColor: LINE, fontSize: "sm", variant: "outline", "aria-expanded": opened === number,
              "aria-label": `Content of dead letter ${number}, ${bytes(size)}`, onClick: () => setOpened(opened === number ? 0 : number),
            },
            opened === number ? "Hide" : bytes(size),
          )
        : bytes(size);
    },
  };
  return [
    {
      title: "Message",
      cell: (letter) => {
        const { number, sequence } = letter;
        const selectable = may && isKept(letter);
        return h(
          HStack,
          { as: selectable ? "label" : "span", gap: 2, display: "inline-flex" },
          selectable
            ? h("input", {
                type: "checkbox", checked: selected.includes(number), "aria-label": `Select message ${sequence}`, onChange: () => toggle(number),
              })
            : null,
          sequence === 0 ? "unknown" : h(Count, { number: sequence }),
        );
      },
    },
    { title: "Subject", cell: ({ subject }) => h(Name, { text: subject, limit: 60 }) },
    { title: "Consumer", cell: ({ consumer }) => h(Name, { text: consumer }) },
    { title: "Reason", width: "25%", cell: ({ reason }) => h(Name, { text: reason, limit: 160 }) },
    { title: "Failed", numeric: true, cell: ({ failures }) => h(Count, { number: failures }) },
    { title: "Claim", cell: ({ claim }) => (claim === "" ? "unknown" : h(ClaimLink, { connection, id: claim })) },
    { title: "Since", cell: (letter) => h(Time, { at: letter.stored_at }) },
    { title: "What became of it", cell: (letter) => h(Fate, { letter }) },
    content,
  ];
}

/** @param {{ letter: Letter }} properties */
function Fate({ letter: { outcome, replayed, confirmed, problem } }) {
  if (outcome !== null) {
    const badge = h(Badge, { colorPalette: outcome === "replayed" ? "success" : "gray" }, shortened(outcome, 30));
    return h(Box, null, badge, replayed === null ? null : h(Box, null, h(Time, { at: replayed })));
  }
  if (problem === null) return h(Badge, { colorPalette: confirmed ? "gray" : "warning" }, confirmed ? "kept" : "not confirmed");
  const why = h(Text, { as: "span", display: "block", fontSize: "sm" }, h(Name, { text: problem, limit: 200 }));
  return h(Box, null, h(Badge, { colorPalette: "warning" }, "not a dead letter"), why);
}

/**
 * The headers and the payload of a dead letter.
 *
 * @param {{ connection: string, stream: string, number: number }} properties
 */
function Content({ connection, stream, number }) {
  const [payload, setPayload] = useState(/** @type {Payload | null} */ (null));
  const [fault, setFault] = useState("");
  useEffect(() => {
    const ended = new AbortController();
    const found = path("connections", connection, "dead-letters", stream, String(number)) ?? "";
    void /** @type {Promise<Payload>} */ (get(found, ended.signal)).then(setPayload, (error) => {
      if (!ended.signal.aborted) setFault(asFault(error).message);
    });
    return () => ended.abort();
  }, [connection, stream, number]);
  if (fault !== "") return h(Text, { role: "alert" }, h(Name, { text: fault, limit: 600 }));
  if (payload === null) return h(Text, { role: "status" }, "Loading…");
  const { headers, data } = payload;
  const cut = data.cut ? `, of which the beginning is displayed` : "";
  const text = data.form === "text" ? "as text" : "as hexadecimal bytes, because it is not text";
  return h(
    Stack,
    { gap: 3 },
    h(
      Box,
      null,
      h(Text, { fontWeight: "semibold" }, headers.length === 0 ? "No headers" : counted(headers.length, "header")),
      headers.length === 0
        ? null
        : h(Pre, { label: `Headers of dead letter ${number}`, text: headers.map(([name, value]) => `${visible(name)}: ${visible(value)}`).join("\n") }),
    ),
    h(
      Box,
      null,
      h(Text, { fontWeight: "semibold" }, `Payload: ${bytes(data.size)}${cut}, ${text}`),
      data.size === 0 ? null : h(Pre, { label: `Payload of dead letter ${number}`, text: visibleLines(data.shown) }),
    ),
  );
}
