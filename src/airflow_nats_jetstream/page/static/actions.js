// @ts-check
// SPDX-License-Identifier: Apache-2.0
/** What users who may change the connection can do: names, addresses and requests of the actions, without I/O. */

import { counted } from "./quantities.js";
import { path, query } from "./places.js";
import { shortened, visible } from "./text.js";

/**
 * @typedef {{ kind: "release", connection: string, claim: string }} Release
 * @typedef {{
 *   kind: "release_all", connection: string, stream: string, consumer: string, held: string, dag: string, run: string,
 * }} ReleaseAll
 * @typedef {{ kind: "pause" | "resume" | "reset", connection: string, stream: string, consumer: string }} OfConsumer
 * @typedef {{ kind: "replay" | "discard", connection: string, stream: string, numbers: ReadonlyArray<number> }} OfLetters
 * @typedef {Release | ReleaseAll | OfConsumer | OfLetters} Action
 */

/** What the user chooses in the dialog.
 * - minutes: how long the consumer is paused.
 * - sequence: the first message that is delivered again; empty for the first one that is not acknowledged.
 * - unconfirmed: also dead letters that are not confirmed by the ledger.
 * @typedef {{ minutes: number, sequence: string, unconfirmed: boolean }} Choices */

/** @type {Readonly<Choices>} */
export const CHOICES = { minutes: 60, sequence: "", unconfirmed: false };

/** Offered durations of a pause. @type {ReadonlyArray<readonly [number, string]>} */
export const PAUSES = [
  [15, "15 minutes"],
  [60, "1 hour"],
  [480, "8 hours"],
  [1_440, "1 day"],
  [10_080, "7 days"],
];

/** The most dead letters that one request names. */
export const MOST_LETTERS = 100;

/** @type {Readonly<Record<Action["kind"], string>>} */
const VERBS = {
  release: "Release", release_all: "Release all", pause: "Pause", resume: "Resume", reset: "Reset", replay: "Replay", discard: "Discard",
};

/** @param {Action} action */
export function verb(action) {
  return VERBS[action.kind];
}

/**
 * The label of the button that carries the action out.
 *
 * @param {Action} action
 * @param {{ alive: boolean, unknown: boolean }} state
 */
export function decision(action, { alive, unknown }) {
  if (alive) return `${verb(action)} although it is alive`;
  return unknown ? `${verb(action)} although it may be alive` : verb(action);
}

/**
 * The heading of the dialog.
 *
 * @param {Action} action
 */
export function title(action) {
  return `${verb(action)} ${object(action)}?`;
}

/** @param {Action} action */
function object(action) {
  switch (action.kind) {
    case "release":
      return `claim ${shortened(action.claim, 60)}`;
    case "release_all":
      return `open claims of ${described(action)}`;
    case "pause":
    case "resume":
    case "reset":
      return `consumer ${shortened(action.consumer, 60)} of stream ${shortened(action.stream, 60)}`;
    case "replay":
    case "discard":
      return `${counted(action.numbers.length, "dead letter")} of stream ${shortened(action.stream, 60)}`;
  }
}

/** @param {ReleaseAll} action */
function described({ stream, consumer, held, dag, run }) {
  const names = Object.entries({ run, Dag: dag, consumer, stream }).filter(([, value]) => value !== "");
  const only = held === "" ? [] : [held === "yes" ? "held by an attempt" : "held by nobody"];
  return [...names.map(([what, value]) => `${what} ${shortened(value, 60)}`), ...only].join(", ");
}

/**
 * What the user types to confirm a dangerous action: the name of what it acts on, as the page shows it.
 *
 * @param {Action} action
 */
export function word(action) {
  return visible(name(action));
}

/** @param {Action} action */
function name(action) {
  switch (action.kind) {
    case "release":
      return action.claim;
    case "release_all":
      return action.run || action.dag || action.consumer;
    case "pause":
    case "resume":
    case "reset":
      return action.consumer;
    case "replay":
    case "discard":
      return action.stream;
  }
}

/**
 * Why the choices are invalid; empty if they are valid.
 *
 * @param {Action} action
 * @param {Choices} choices
 */
export function objection(action, { sequence }) {
  if (action.kind !== "reset" || sequence === "" || /^[1-9]\d{0,15}$/.test(sequence)) return "";
  return "A sequence is a whole number of at least 1.";
}

/**
 * The path of an action below the API's address, or null if a name cannot be part of an address.
 *
 * @param {Action} action
 * @returns {string | null}
 */
export function actionPath(action) {
  switch (action.kind) {
    case "release":
      return path("connections", action.connection, "claims", action.claim, "release");
    case "release_all":
      return path("connections", action.connection, "claims", "release_all");
    case "pause":
    case "resume":
    case "reset":
      return path("connections", action.connection, "consumers", action.stream, action.consumer, action.kind);
    case "replay":
    case "discard":
      return path("connections", action.connection, "dead-letters", action.stream, action.kind);
  }
}

/**
 * The parameters of an action: of the body, and of the query of its preview.
 *
 * @param {Action} action
 * @param {Choices} choices
 * @param {number} now milliseconds since 1970
 */
export function parameters(action, choices, now) {
  switch (action.kind) {
    case "release":
    case "resume":
      return {};
    case "release_all": {
      const { stream, consumer, held, dag, run } = action;
      return { stream, consumer, held, dag, run };
    }
    case "pause":
      return { until: new Date(Math.round(now / 1_000) * 1_000 + choices.minutes * 60_000).toISOString() };
    case "reset":
      return { sequence: choices.sequence === "" ? null : Number(choices.sequence) };
    case "replay":
    case "discard":
      return { numbers: action.numbers, unconfirmed: choices.unconfirmed };
  }
}

/**
 * The address of the preview below the API's address, or null.
 *
 * @param {Action} action
 * @param {ReturnType<typeof parameters>} chosen
 * @returns {string | null}
 */
export function previewPath(action, chosen) {
  const found = actionPath(action);
  return found === null ? null : `${found}/preview${query(chosen)}`;
}

/**
 * The body of the request that carries out the action.
 *
 * @param {Action} action
 * @param {ReturnType<typeof parameters>} chosen
 * @param {{ revision: string, alive: boolean, unknown: boolean }} state
 */
export function body(action, chosen, { revision, alive, unknown }) {
  const listens = action.kind === "release" || action.kind === "release_all";
  return { expected: revision, ...chosen, ...(listens ? { despite_alive: alive, despite_unknown: unknown } : {}) };
}
