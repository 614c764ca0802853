// @ts-check
// SPDX-License-Identifier: Apache-2.0
/** The page's API: the only module that sends requests. `page/` of this package answers them. */

import { EXPIRED, Fault, faultOf, unfinished, unreachable } from "./fault.js";

/**
 * A task instance of this Airflow whose Dag the user may see.
 * @typedef {{
 *   text: string, dag_id: string, run_id: string, task_id: string, map_index: number, try_number: number | null,
 *   state: string | null,
 * }} Task
 */
/** @typedef {{ id: string, may_act: boolean }} Connection */
/**
 * A problem: its cause, what that does (which may be empty), and what to do. `action` is what this page can do about
 * it: an action, or a link.
 * @typedef {{
 *   kind: string, level: "error" | "warning", cause: string, effect: string, remedy: string, claim: string,
 *   action: null | "resume" | "reset" | "release" | "dead_letters" | "task" | "dag", task: Task | null,
 *   dag: { dag_id: string, paused: boolean } | null,
 * }} Finding
 */
/**
 * What the next batch of a consumer with `ordered_by` waits for: `claims` of the `of` claims of a batch, for `age`
 * seconds. `claim` was taken first, and `task` holds it.
 * @typedef {{ claims: number, of: number, messages: number, age: number, claim: string, task: Task | string }} Barrier
 */
/**
 * `usual` is the usual duration of a claim in seconds, and `stopped` the number of keys that have stopped. `exists` is
 * null if the consumer could not be read. `unmatched` says that its filter has matched no message; it is empty if it has.
 * All times are RFC 3339.
 * @typedef {{
 *   name: string, exists: boolean | null, paused_until: string | null, pending: number | null, ack_pending: number | null,
 *   redelivered: number | null, waiting_pulls: number | null, floor: number | null, delivered: number | null,
 *   ack_wait: number | null, open: number, held: number, claimed_messages: number,
 *   oldest: { id: string, age: number } | null, usual: number | null, barrier: Barrier | null, stopped: number,
 *   unmatched: string, findings: Finding[],
 * }} Consumer
 */
/**
 * @typedef {{
 *   name: string, messages: number | null, bytes: number | null,
 *   dead_letters: { stream: string, exists: boolean, count: number | null, complete: boolean }, consumers: Consumer[],
 * }} Stream
 */
/**
 * @typedef {{
 *   id: string, now: string, server: string, version: string, domain: string | null, ledger: string, may_act?: boolean,
 *   watched_since: string,
 *   findings: Finding[], streams: Stream[],
 * }} Overview
 */
/**
 * @typedef {{
 *   id: string, state: "open" | "done" | "failed" | "superseded", stream: string, consumer: string, count: number,
 *   bytes: number | null, sequences: string, since: string, age: number | null, taken_by: Task | string | null,
 *   holder: { token: string, since: string, task: Task | string | null } | null, current: boolean,
 * }} Claim
 */
/** @typedef {{ total: number, now: string, claims: Claim[] }} Claims */
/** @typedef {{ what: string, at: string, text: string, task: Task | null }} Moment */
/**
 * `value` is what the task returned, with numbers that are too large for JavaScript as strings.
 * @typedef {Claim & {
 *   timeline: Moment[], next: string, alive: boolean | null, silence: number, attempt_id: string | null,
 *   value: unknown, rejected: string, skipped: string, overlapping: string[], superseded_by: string[],
 *   spark: { application: string, url: string | null } | null, consumer_info: Record<string, unknown> | null,
 *   revision: string, may_release: boolean,
 * }} ClaimDetail
 */
/**
 * `number` is the dead letter's sequence in the dead-letter stream, `sequence` that of the message in its stream, or 0.
 * `outcome` is what became of the dead letter; null while it is kept. `problem` is why the message is no dead letter.
 * @typedef {{
 *   number: number, sequence: number, subject: string, consumer: string, reason: string, failures: number,
 *   claim: string, attempt: string, stored_at: string, size: number, confirmed: boolean, problem: string | null,
 *   outcome: string | null, replayed: string | null,
 * }} Letter
 */
/** `total` is too small for a moment unless it is complete.
 * @typedef {{ total: number, complete: boolean, next: number | null, letters: Letter[] }} Letters */
/**
 * @typedef {{
 *   number: number, headers: [string, string][],
 *   data: { form: "text" | "hex", shown: string, size: number, cut: boolean },
 * }} Payload
 */
/** `silence` is how long the action listens for the holder, in seconds.
 * @typedef {{ revision: string, text: string, dangerous: boolean, silence?: number }} Preview */

/** The page is served below jetstream/static/<hash>/, whatever the base path of Airflow is. */
const API = new URL("../../api/", import.meta.url);

/** Milliseconds; more than the 50 s within which the API answers every action. */
const PATIENCE = 55_000;

/**
 * @param {string} path below the API's address
 * @param {RequestInit} init
 * @param {AbortSignal} [signal]
 * @returns {Promise<unknown>} the answer's JSON
 * @throws {Fault}
 */
async function request(path, init, signal) {
  const limits = [AbortSignal.timeout(PATIENCE), ...(signal === undefined ? [] : [signal])];
  let response;
  let body;
  try {
    response = await fetch(new URL(path, API), {
      ...init, cache: "no-store", credentials: "same-origin", redirect: "manual", signal: AbortSignal.any(limits),
    });
    const text = await response.text();
    body = parsed(text);
  } catch {
    throw init.method === "POST" ? unfinished() : unreachable();
  }
  if (response.type === "opaqueredirect") throw faultOf(EXPIRED, undefined); // a proxy wants the user to log in
  if (!response.ok || body === undefined) throw faultOf(response.status, body);
  return body;
}

/**
 * @param {string} text
 * @returns {unknown} undefined unless the text is JSON
 */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/**
 * @template T
 * @param {string} path
 * @param {AbortSignal} [signal]
 * @returns {Promise<T>}
 */
export async function get(path, signal) {
  return /** @type {T} */ (await request(path, { headers: { Accept: "application/json" } }, signal));
}

/**
 * @template T
 * @param {string} path
 * @param {object} body
 * @returns {Promise<T>}
 */
export async function post(path, body) {
  const headers = { Accept: "application/json", "Content-Type": "application/json" };
  return /** @type {T} */ (await request(path, { method: "POST", headers, body: JSON.stringify(body) }));
}

/**
 * What a request threw, as a fault.
 *
 * @param {unknown} error
 */
export function asFault(error) {
  return error instanceof Fault ? error : unreachable();
}
