// @ts-check
// SPDX-License-Identifier: Apache-2.0
/** One claim: its history, what happens next, whether its holder is alive, and its output. */

import { useAnswer } from "./answers.js";
import { asFault, get } from "./api.js";
import { withTimes } from "./clock.js";
import { ActionButton } from "./dialog.js";
import { ClaimLink, ClaimState, h, LINE, Name, PlaceLink, TaskLink, Time, WebLink } from "./elements.js";
import { INTERVAL } from "./fault.js";
import { Filters, Typed } from "./filters.js";
import { Freshness } from "./freshness.js";
import { path, query } from "./places.js";
import { bytes, counted, duration } from "./quantities.js";
import { shortened, visibleJson, visibleLines } from "./text.js";

/** @import { ClaimDetail, Moment } from "./api.js" */
/** @import { Place } from "./places.js" */

const { Alert, Badge, Box, Button, DataList, Heading, HStack, Stack, Text, Timeline } = globalThis.ChakraUI;
const { useEffect, useState } = globalThis.React;

/** Seconds for which the API listens for a holder at most. */
const LONGEST = 25;

/** Seconds between two requests for a claim that has ended. */
const ENDED = 30;

/** @type {Readonly<Record<string, string>>} */
const TITLES = {
  taken: "Taken", held: "Held", handed_on: "Handed on", released: "Released", done: "Done", acknowledged: "Acknowledged", failed: "Failed",
  superseded: "Superseded", reprocessing: "Being processed again",
};

/** @param {{ place: Place, go: (changed: Partial<Place>) => void }} properties */
export function ClaimView({ place: { connection, claim }, go }) {
  const found = claim === "" ? null : path("connections", connection, "claims", claim);
  const answer = /** @type {import("./answers.js").Answer<ClaimDetail>} */ (useAnswer(found, interval));
  return h(
    Box,
    null,
    h(Filters, null, h(Typed, { key: claim, label: "Claim id", value: claim, verb: "Find", choose: (id) => go({ claim: id }) })),
    claim === ""
      ? h(Text, { color: "fg.muted" }, "Enter the id of a claim. It is in the log of the task that took the claim, and in the list of open claims.")
      : h(Freshness, { answer }),
    answer.data === undefined ? null : h(Detail, { key: claim, connection, claim: answer.data, found: found ?? "" }),
  );
}

/**
 * Seconds until a claim is requested again. One that has ended only changes if somebody processes it again.
 *
 * @param {ClaimDetail} claim
 */
function interval({ state, timeline }) {
  const acknowledged = timeline.some(({ what }) => what === "acknowledged");
  return state === "open" || (state === "done" && !acknowledged) ? INTERVAL : ENDED;
}

/** @param {{ connection: string, claim: ClaimDetail, found: string }} properties */
function Detail({ connection, claim, found }) {
  const { id, state, stream, consumer, sequences, current, overlapping, superseded_by: later } = claim;
  return h(
    Stack,
    { as: "article", gap: 5, "aria-labelledby": "jetstream-claim" },
    h(
      Box,
      null,
      h(
        HStack,
        { gap: 3, flexWrap: "wrap" },
        h(Heading, { as: "h2", size: "md", id: "jetstream-claim" }, "Claim ", h(Name, { text: id, mono: true })),
        h(ClaimState, { state }),
        current ? null : h(Badge, { colorPalette: "warning" }, "cannot be settled"),
        state === "open" && claim.may_release ? h(ActionButton, { action: { kind: "release", connection, claim: id } }) : null,
      ),
      h(
        Text,
        { mt: 1 },
        `${counted(claim.count, "message")}, ${bytes(claim.bytes)}, of `,
        h(PlaceLink, { place: { view: "claims", connection, stream } }, h(Name, { text: stream })),
        " by ",
        h(PlaceLink, { place: { view: "claims", connection, stream, consumer } }, h(Name, { text: consumer })),
        ": ",
        h(Name, { text: sequences, limit: 300, mono: true }),
      ),
    ),
    h(Part, { title: "What happens next" }, h(Text, null, h(Name, { text: withTimes(claim.next), limit: 1_000 }))),
    claim.holder !== null ? h(Liveness, { found, silence: claim.silence, token: claim.holder.token }) : null,
    h(ClaimLinks, { title: "Superseded by", ids: later, connection }),
    h(ClaimLinks, { title: "Open claims that contain its messages now", ids: overlapping, connection }),
    h(Part, { title: "History" }, h(Moments, { timeline: claim.timeline })),
    h(Output, { claim }),
    claim.consumer_info === null ? null : h(Part, { title: "Its consumer" }, h(Facts, { facts: claim.consumer_info })),
  );
}

/** @param {{ title: string, children?: Child }} properties */
function Part({ title, children }) {
  return h(Box, { as: "section" }, h(Heading, { as: "h3", size: "sm", mb: 1 }, title), children);
}

/** @param {{ title: string, ids: string[], connection: string }} properties */
function ClaimLinks({ title, ids, connection }) {
  if (ids.length === 0) return null;
  return h(
    Part,
    { title },
    h(
      HStack,
      { as: "ul", gap: 4, flexWrap: "wrap", listStyleType: "none" },
      ids.map((id) => h("li", { key: id }, h(ClaimLink, { connection, id }))),
    ),
  );
}

/** @param {{ timeline: Moment[] }} properties */
function Moments({ timeline }) {
  if (timeline.length === 0) return h(Text, { color: "fg.muted" }, "The ledger has no history of this claim.");
  return h(
    Timeline.Root,
    { as: "ol", size: "sm", listStyleType: "none" },
    timeline.map(({ what, at, text, task }, index) =>
      h(
        Timeline.Item,
        { key: index, as: "li" },
        h(Timeline.Connector, { "aria-hidden": true }, h(Timeline.Separator), h(Timeline.Indicator)),
        h(
          Timeline.Content,
          { minWidth: 0 },
          h(Timeline.Title, null, TITLES[what] ?? shortened(what, 40), h(Box, { as: "span", color: "fg.muted", fontWeight: "normal" }, h(Time, { at }))),
          h(Box, { fontSize: "sm", overflowWrap: "anywhere" }, h(Name, { text: withTimes(text), limit: 600 })),
          task === null ? null : h(TaskLink, { task }),
        ),
      ),
    ),
  );
}

/** @param {{ claim: ClaimDetail }} properties */
function Output({ claim: { state, value, attempt_id: attempt, spark, rejected, skipped } }) {
  return h(
    Stack,
    { gap: 4 },
    spark === null ? null : h(Part, { title: "Spark application" }, h(WebLink, { address: spark.url, text: spark.application })),
    attempt === null ? null : h(Part, { title: "Name of its attempt and of its output" }, h(Name, { text: attempt, limit: 200, mono: true })),
    rejected === "" ? null : h(Part, { title: "Messages that became dead letters" }, h(Name, { text: rejected, limit: 600, mono: true })),
    skipped === "" ? null : h(Part, { title: "Messages that no longer existed and were skipped" }, h(Name, { text: skipped, limit: 600, mono: true })),
    state === "done" ? h(Part, { title: "Value that its task returned" }, h(Pre, { label: "Value that its task returned", text: visibleJson(value) })) : null,
  );
}

/**
 * Lines of text that are already safe to display, in a box that scrolls.
 *
 * @param {{ label: string, text: string }} properties
 */
export function Pre({ label, text }) {
  return h(
    Box,
    {
      as: "pre", role: "region", "aria-label": label, tabIndex: 0, dir: "ltr", bg: "bg.subtle", borderWidth: "1px", borderRadius: "md",
      fontFamily: "mono", fontSize: "sm", maxHeight: "20rem", overflow: "auto", overflowWrap: "anywhere", p: 2, whiteSpace: "pre-wrap",
    },
    text,
  );
}

/** @param {{ facts: Record<string, unknown> }} properties */
function Facts({ facts }) {
  return h(
    DataList.Root,
    { orientation: "horizontal", size: "sm" },
    Object.entries(facts).filter(([, fact]) => fact !== null).map(([name, fact]) =>
      h(
        DataList.Item,
        { key: name },
        h(DataList.ItemLabel, null, shortened(name.replaceAll("_", " "), 40)),
        h(DataList.ItemValue, { overflowWrap: "anywhere", minWidth: 0 }, visibleLines(typeof fact === "string" ? fact : JSON.stringify(fact))),
      ),
    ),
  );
}

/** A check of a holder, in seconds. @typedef {{ address: string, token: string, listen: number, silence: number }} Listening */
/** @typedef {{ listening: Listening | null, text: string, status: "success" | "warning" | "error" }} Check */

/** @type {Check} */
const UNCHECKED = { listening: null, text: "", status: "success" };

/**
 * The check whether the holder of a claim is alive, by listening for its heartbeats.
 *
 * @param {{ found: string, silence: number, token: string }} properties `silence` is in seconds
 */
function Liveness({ found, silence, token }) {
  const [{ listening, text, status }, setCheck] = useState(UNCHECKED);
  useEffect(() => {
    if (listening === null) return undefined;
    const ended = new AbortController();
    void heard(listening, ended.signal).then((result) => (ended.signal.aborted ? undefined : setCheck(result)));
    return () => ended.abort();
  }, [listening]);
  const begin = () => {
    const listen = Math.max(1, Math.min(LONGEST, Math.ceil(silence)));
    setCheck({ ...UNCHECKED, listening: { address: found, token, listen, silence } });
  };
  return h(
    Part,
    { title: "Its holder" },
    h(
      HStack,
      { gap: 3, flexWrap: "wrap" },
      h(
        Button,
        { size: "xs", borderColor: LINE, fontSize: "sm", variant: "outline", "aria-disabled": listening !== null, onClick: () => (listening === null ? begin() : undefined) },
        "Check whether the holder is alive",
      ),
      listening === null ? null : h(Countdown, { seconds: listening.listen }),
    ),
    h(
      Box,
      { role: "status", mt: 2 },
      listening === null ? null : h(Text, { fontSize: "sm" }, `Listening for heartbeats for up to ${duration(listening.listen)}.`),
      text === ""
        ? null
        : h(Alert.Root, { status }, h(Alert.Indicator, { "aria-hidden": true }), h(Alert.Title, null, h(Name, { text, limit: 600 }))),
    ),
  );
}

/**
 * @param {Listening} listening
 * @param {AbortSignal} signal
 * @returns {Promise<Check>}
 */
async function heard({ address, token, listen, silence }, signal) {
  try {
    const { alive, holder } = /** @type {ClaimDetail} */ (await get(`${address}${query({ listen })}`, signal));
    if (holder === null) return { ...UNCHECKED, status: "warning", text: "Nobody holds the claim any longer." };
    if (alive) return { ...UNCHECKED, text: `Attempt ${holder.token} is alive: a heartbeat arrived.` };
    const changed = holder.token === token ? "" : " It has taken the claim over in the meantime.";
    const enough =
      alive === false
        ? "It counts as dead."
        : `Whether it is alive is unknown, because an attempt counts as dead after ${duration(silence)} without one. The command \`python -m airflow_nats_jetstream claim\` can listen for longer.`;
    const text = `No heartbeat of attempt ${holder.token} arrived within ${duration(listen)}. ${enough}${changed}`;
    return { ...UNCHECKED, status: "warning", text };
  } catch (error) {
    return { ...UNCHECKED, status: "error", text: asFault(error).message };
  }
}

/** @param {{ seconds: number }} properties */
function Countdown({ seconds }) {
  const [left, setLeft] = useState(seconds);
  useEffect(() => {
    const end = performance.now() + seconds * 1_000;
    const timer = setInterval(() => setLeft(Math.max(0, Math.ceil((end - performance.now()) / 1_000))), 250);
    return () => clearInterval(timer);
  }, [seconds]);
  return h(Text, { "aria-hidden": true, fontVariantNumeric: "tabular-nums" }, `${left} s`);
}
